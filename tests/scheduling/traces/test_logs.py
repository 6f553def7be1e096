"""Logs and queues of clusters in the form in which they are published or printed: every form by the same table."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.logs.gres import held_devices, split_slice
from paceline.scheduling.traces.logs.kubernetes import devices_of_pod
from paceline.scheduling.traces.logs.log_times import parse_duration, parse_minutes, parse_time
from paceline.scheduling.traces.logs.slurm_columns import state_word
from paceline.scheduling.traces.reader import form_of, parse_log
from paceline.scheduling.traces.trace import trace_of_log


@dataclass(frozen=True)
class Case:
    """A text, the form it has, and the jobs in it: (name, arrival, run time, devices, share, types, wait)."""

    form: str
    text: str
    jobs: list[tuple[Any, ...]]
    skipped: dict[str, str] = field(default_factory=dict)
    queue: bool = False


SACCT = "JobID|User|Account|Submit|Start|End|State|AllocTRES"
DAY = "2026-11-01T"
ONE = f"1|ann|lab|{DAY}08:00:00|{DAY}08:05:00|{DAY}09:05:00|COMPLETED"
A = {"name": "a"}
WORKLOAD = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {
        "name": "job-a-1f",
        "namespace": "ml",
        "creationTimestamp": f"{DAY}08:00:00Z",
        "ownerReferences": [{"name": "a"}],
    },
    "spec": {
        "queueName": "team",
        "priority": 7,
        "maximumExecutionTimeSeconds": 900,
        "podSets": [
            {
                "name": "main",
                "count": 2,
                "topologyRequest": {"required": "cloud.provider.com/topology-rack"},
                "template": {
                    "spec": {
                        "containers": [{"command": ["python", "t.py"], "resources": {"requests": {"nvidia.com/gpu": "8"}}}]
                    }
                },
            }
        ],
    },
    "status": {
        "admission": {
            "clusterQueue": "cq",
            "podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": "h100"}, "count": 2}],
        },
        "conditions": [
            {"type": "Admitted", "status": "True", "lastTransitionTime": f"{DAY}08:01:00Z"},
            {"type": "Finished", "status": "True", "reason": "Succeeded", "lastTransitionTime": f"{DAY}08:11:00Z"},
        ],
    },
}
FLAVOR = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "h100"},
    "spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
}
VOLCANO = f"""apiVersion: v1
kind: List
items:
- apiVersion: batch.volcano.sh/v1alpha1
  kind: Job
  metadata: {{name: mnist, namespace: ml, uid: u1, creationTimestamp: "{DAY}08:00:00Z"}}
  spec:
    queue: research
    tasks:
    - replicas: 3
      template: {{spec: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: 2}}}}}}]}}}}
  status:
    state: {{phase: Completed, lastTransitionTime: "{DAY}08:40:00Z"}}
    conditions:
    - {{status: Pending, lastTransitionTime: "{DAY}08:00:00Z"}}
    - {{status: Running, lastTransitionTime: "{DAY}08:10:00Z"}}
    - {{status: Completed, lastTransitionTime: "{DAY}08:40:00Z"}}
- apiVersion: scheduling.volcano.sh/v1beta1
  kind: PodGroup
  metadata: {{name: mnist-u1, namespace: ml, creationTimestamp: "{DAY}08:00:00Z", ownerReferences: [{{uid: u1, name: mnist}}]}}
  spec: {{minMember: 3, minResources: {{nvidia.com/gpu: "6"}}}}
  status: {{phase: Completed}}
"""
PHILLY = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:09",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 01:20:00",
                "end_time": "2017-10-07 01:30:00",
                "detail": [{"ip": "m2", "gpus": ["gpu0", "gpu1"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "c",
    },
    {
        "status": "Killed",
        "vc": "v",
        "jobid": "application_1_2",
        "attempts": [],
        "submitted_time": "2017-10-07 01:11:40",
        "user": "c",
    },
    {"status": "Pass", "vc": "v", "jobid": "application_1_3", "attempts": [{}], "submitted_time": "soon", "user": "c"},
]
SACCT_JOB = {
    "job_id": 7,
    "name": "train",
    "user": "ann",
    "account": "lab",
    "partition": "gpu",
    "array": {"job_id": 5, "task_id": {"set": True, "infinite": False, "number": 3}, "task": ""},
    "het": {"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
    "state": {"current": ["COMPLETED"], "reason": "None"},
    "time": {
        "submission": 1790968180,
        "eligible": 1790968180,
        "start": 1790968182,
        "end": 1790971782,
        "elapsed": 3600,
        "limit": {"set": True, "infinite": False, "number": 120},
    },
    "tres": {
        "allocated": [
            {"type": "cpu", "name": "", "id": 1, "count": 8},
            {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
            {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 4},
        ],
        "requested": [],
    },
}
SQUEUE_JOBS = [
    {
        "job_id": 11,
        "array_job_id": {"set": True, "number": 11},
        "array_task_id": {"set": False, "number": 0},
        "array_task_string": "2-4%2",
        "job_state": ["PENDING"],
        "state_reason": "Priority",
        "submit_time": {"set": True, "infinite": False, "number": 1790968180},
        "start_time": {"set": True, "infinite": False, "number": 1790970000},
        "time_limit": {"set": True, "infinite": False, "number": 60},
        "node_count": {"set": True, "number": 2},
        "tres_per_node": "gres/gpu:h100:4",
        "tres_req_str": "cpu=8,mem=1G,node=2,gres/gpu=8",
        "user_name": "ann",
        "command": "/home/ann/t.sh",
    },
    {
        "job_id": 12,
        "job_state": "RUNNING",
        "submit_time": 1790968000,
        "start_time": 1790968100,
        "time_limit": 60,
        "tres_alloc_str": "cpu=8,gres/gpu=2,gres/gpu:a100=2",
    },
]
RAY = [
    {
        "type": "SUBMISSION",
        "submission_id": "raysubmit_1",
        "status": "SUCCEEDED",
        "entrypoint": "python t.py --num-gpus 4",
        "start_time": 1_700_000_000_000,
        "end_time": 1_700_000_060_000,
    },
]
CASES = {
    "reqtres": Case(
        "sacct",
        f"{SACCT.replace('AllocTRES', 'ReqTRES|NNodes')}\n{ONE}|cpu=8,gres/gpu=8,node=2|2",
        [("1", 0, 3600, 8, 1, (), 300)],
    ),
    "allocgres is of all nodes": Case(
        "sacct", f"{SACCT.replace('AllocTRES', 'AllocGRES|NNodes')}\n{ONE}|gpu:4|2", [("1", 0, 3600, 4, 1, (), 300)]
    ),
    "reqgres is of one node": Case(
        "sacct", f"{SACCT.replace('AllocTRES', 'ReqGRES|NNodes')}\n{ONE}|gpu:a100:4|2", [("1", 0, 3600, 8, 1, ("a100",), 300)]
    ),
    "the number of gpu in old releases": Case(
        "sacct", f"{SACCT.replace('AllocTRES', 'AllocGRES')}\n{ONE}|7696487:4", [("1", 0, 3600, 4, 1, (), 300)]
    ),
    "types and steps": Case(
        "sacct",
        f"{SACCT}\n{ONE}|billing=8,gres/gpu:a100=4,gres/gpu=4\n1.batch{ONE[1:]}|gres/gpu:a100=4\n1.extern{ONE[1:]}|",
        [("1", 0, 3600, 4, 1, ("a100",), 300)],
    ),
    "a MIG slice is a type of its own": Case(
        "sacct",
        f"{SACCT}\n{ONE}|gres/gpu:nvidia_a100_1g.5gb=1,gres/gpu=1\n2{ONE[1:]}|gres/gpu:a100_3g.20gb=1\n"
        f"3{ONE[1:]}|gres/gpu:a100_7g.40gb=2\n4{ONE[1:]}|gres/gpu:a100_2g.10gb=3\n5{ONE[1:]}|gres/shard=3",
        [
            ("1", 0, 3600, 1, 1, ("nvidia_a100 1g.5gb",), 300),
            ("2", 0, 3600, 1, 1, ("a100 3g.20gb",), 300),
            ("3", 0, 3600, 2, 1, ("a100 7g.40gb",), 300),
            ("4", 0, 3600, 3, 1, ("a100 2g.10gb",), 300),
        ],
        {"5": "held shards of a GPU"},
    ),
    "epochs": Case(
        "sacct", f"{SACCT}\n1|ann|lab|1790968180|1790968182|1790971782|COMPLETED|gres/gpu=1", [("1", 0, 3600, 1, 1, (), 2)]
    ),
    "the end from the run time, the start from the wait": Case(
        "sacct",
        f"JobIDRaw|Submit|Start|ElapsedRaw|State|AllocTRES\n1|{DAY}08:00:00|{DAY}08:05:00|3600|TIMEOUT|gres/gpu=4\n"
        f"2|{DAY}08:00:00|None|0|CANCELLED by 7|",
        [("1", 0, 3600, 4, 1, (), 300)],
        {"2": "never started"},
    ),
    "planned and elapsed alone": Case(
        "sacct",
        f"JobID|Submit|Planned|Elapsed|State|AllocTRES\n1|{DAY}08:00:00|00:05:00|1-01:00:00|COMPLETED|gres/gpu=4",
        [("1", 0, 90000, 4, 1, (), 300)],
    ),
    "a change of clocks": Case(
        "sacct",
        f"{SACCT}\n1|a|b|2026-10-25T02:50:00|2026-10-25T02:10:00|2026-10-25T03:10:00|COMPLETED|gres/gpu=1\n"
        f"2|a|b|2026-10-25T02:50:00|2026-10-25T02:55:00|2026-10-25T02:25:00|COMPLETED|gres/gpu=1\n"
        f"3|a|b|2026-10-25T02:50:00|2026-10-24T02:55:00|2026-10-25T02:55:00|COMPLETED|gres/gpu=1",
        [("1", 0, 3600, 1, 1, (), 1200), ("2", 0, 1800, 1, 1, (), 300)],
        {"3": "started before their submission"},
    ),
    "a requeued job, a bar at the end": Case(
        "sacct",
        f"{SACCT}|\n{ONE.replace('COMPLETED', 'NODE_FAIL')}|gres/gpu=4|\n"
        f"1|ann|lab|{DAY}09:05:01|{DAY}09:10:00|{DAY}10:10:00|COMPLETED|gres/gpu=4|",
        [("1", 0, 3600, 4, 1, (), 300), ("1, run 2", 3901, 3600, 4, 1, (), 299)],
    ),
    "columns of fixed width": Case(
        "sacct",
        "JobID           Submit               Start                 End      State  AllocTRES \n"
        "------------ ------------------- ------------------- ------------------- ---------- --------------------\n"
        f"7            {DAY}08:00:00 {DAY}08:05:00 {DAY}09:05:00  COMPLETED     cpu=8,gres/gpu=4\n"
        f"7.batch      {DAY}08:00:00 {DAY}08:05:00 {DAY}09:05:00  COMPLETED     cpu=8,gres/gpu=4\n"
        f"8            {DAY}08:00:00 {DAY}08:05:00 {DAY}09:05:00 CANCELLED+ billing=8,cpu=8,mem+\n",
        [("7", 0, 3600, 4, 1, (), 300)],
        {"8": "had a column of devices that was cut off"},
    ),
    "without a header": Case(
        "sacct_headless",
        f"{ONE}|cpu=8,gres/gpu=4\n2{ONE[1:]}|gres/gpu=2",
        [("1", 0, 3600, 4, 1, (), 300), ("2", 0, 3600, 2, 1, (), 300)],
    ),
    "sacct --json": Case(
        "sacct_json", json.dumps({"jobs": [SACCT_JOB, 3]}), [("5_3", 0, 3600, 4, 1, ("a100",), 2)], {"": "were no job"}
    ),
    "squeue": Case(
        "squeue",
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "              5021       gpu    train    alice  R    1:02:10      1 gpu001\n"
        "      5022_[2-3%1]       gpu my sweep      bob PD       0:00      2 (Resources)\n",
        [("5021", "running", 1, "", 3730), ("5022_[2-3%1]", "waiting", 2, "Resources", math.nan)],
        queue=True,
    ),
    "squeue with bars": Case(
        "squeue",
        "JOBID|PARTITION|USER|ST|SUBMIT_TIME|START_TIME|TIME_LIMIT|NODES|TRES_PER_NODE|REASON\n"
        f"5021|gpu|alice|R|{DAY}08:00:00|{DAY}08:05:00|1-00:00:00|1|gres/gpu:4|None\n"
        f"5022|gpu|bob|PD|{DAY}08:01:00|N/A|12:00:00|2|gres/gpu:a100:8(IDX:0-7)|Resources\n",
        [("5021", "running", 4, "", math.nan), ("5022", "waiting", 16, "Resources", math.nan)],
        queue=True,
    ),
    "squeue --json": Case(
        "squeue_json",
        json.dumps({"jobs": SQUEUE_JOBS, "last_update": {"set": True, "number": 1790969000}}),
        [("11_[2-4%2]", "waiting", 8, "Priority", math.nan), ("12", "running", 2, "", math.nan)],
        queue=True,
    ),
    "scontrol": Case(
        "scontrol",
        "JobId=5021 JobName=my sweep\n   UserId=ann(1000) GroupId=g(1000) MCS_label=N/A\n   Priority=9 Account=lab QOS=normal\n"
        "   JobState=RUNNING Reason=None Dependency=(null)\n   RunTime=01:02:10 TimeLimit=1-00:00:00 TimeMin=N/A\n"
        f"   SubmitTime={DAY}08:00:00 EligibleTime={DAY}08:00:00\n   StartTime={DAY}08:05:00 EndTime=2026-11-02T08:05:00\n"
        "   NumNodes=1 NumCPUs=8\n   ReqTRES=cpu=8,gres/gpu=4\n   AllocTRES=cpu=8,gres/gpu=4,gres/gpu:a100=4\n\n"
        "JobId=5022 ArrayJobId=5022 ArrayTaskId=2-3%1 JobName=x\n   JobState=PENDING Reason=Resources Dependency=(null)\n"
        f"   RunTime=00:00:00 SubmitTime={DAY}08:00:00 StartTime=Unknown NumNodes=2-2\n   TresPerNode=gres/gpu:8\n",
        [("5021", "running", 4, "", 3730), ("5022_[2-3%1]", "waiting", 16, "Resources", math.nan)],
        queue=True,
    ),
    "kueue": Case(
        "kueue",
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [WORKLOAD, FLAVOR]}),
        [("ml/job-a-1f", 0, 600, 16, 1, ("NVIDIA-H100-80GB-HBM3",), 60)],
    ),
    "volcano": Case("volcano", VOLCANO, [("ml/mnist", 0, 1800, 6, 1, (), 600)]),
    "ray": Case("ray", json.dumps(RAY), [("raysubmit_1", 0, 60, 4, 1, (), 0)]),
    "swf": Case(
        "swf",
        "; Version: 2.2\n;  MaxProcs: 64\n1 5 10 3600 8 -1 -1 8 7200 -1 1 3 1 -1 1 -1 -1 -1\n"
        "2 65 -1 -1 -1 -1 -1 8 60 -1 5 3 1 -1 1 -1 -1 -1\n3 65 5 7 -1 -1 -1 2\n"
        "4 65 5 120 -1 -1 -1 2 60 -1 0 3 1 -1 1 -1 -1 -1\n",
        [("1", 0, 3600, 8, 1, (), 10), ("4", 60, 120, 2, 1, (), 5)],
        {"2": "never started", "3": "had other than 18 numbers"},
    ),
    "philly": Case(
        "philly_log",
        json.dumps(PHILLY),
        [("application_1_1", 0, 660, 2, 1, (), 30)],
        {"application_1_2": "never started", "application_1_3": "had wrong values"},
    ),
    "helios": Case(
        "helios",
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "11,u,vc,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:37,2020-06-09 18:45:36,239,10\n"
        "12,u,vc,0,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
        "13,u,vc,1,1,1,CANCELLED,2020-06-09 18:41:01,,2020-06-10 04:55:09,,0\n",
        [("11", 0, 239, 4, 1, (), 10)],
        {"12": "held no GPU", "13": "never started"},
    ),
    "acme": Case(
        "acme",
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
        "57,u,1,8,128,Other,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,"
        "2693,13,1.0\n",
        [("57", 0, 2693, 8, 1, (), 13)],
    ),
    "openb": Case(
        "openb",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,12000,16384,1,1000,,LS,Running,0,100,0\np1,6000,12288,1,460,V100M16|V100M32,LS,Succeeded,10,100,20\n"
        "p2,1,1,0,0,,LS,Succeeded,1,9,2\np3,1,1,1,1000,,BE,Pending,5,9,\n",
        [("p0", 0, 100, 1, 1, (), 0), ("p1", 10, 80, 1, 0.46, ("V100 16GB", "V100 32GB"), 10)],
        {"p2": "held no GPU", "p3": "never started"},
    ),
    "pai": Case(
        "pai",
        "j1,tensorflow,2.0,Terminated,100.0,160.0,600.0,29.3,50.0,T4\nj2,ps,1.0,Terminated,100.0,160.0,600.0,29.3,,\n"
        "j2,worker,2.0,Terminated,110.0,150.0,600.0,29.3,100.0,V100M32\nj3,x,1.0,Waiting,,,1.0,1.0,100.0,T4\n",
        [("j1", 0, 60, 1, 1, ("T4",), math.nan), ("j2", 0, 60, 2, 1, ("V100 32GB",), math.nan)],
        {"j3": "never started"},
    ),
    "spot": Case(
        "spot",
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "1,13,A10,20,1,1,0,2764,HP\n2,57,A100-SXM4-80GB,15,1,16,95,41060,Spot\n",
        [("1", 0, 2764, 1, 1, ("A10",), math.nan), ("2", 95, 41060, 16, 1, ("A100-SXM4-80GB",), math.nan)],
    ),
    "supercloud": Case(
        "supercloud",
        "id_job,id_array_job,id_array_task,id_user,partition,priority,state,timelimit,time_submit,time_eligible,time_start,time_end,"
        "gres_used,tres_req,tres_alloc\n"
        '9,0,4294967294,42,normal,10,3,120,1600000000,1600000000,1600000010,1600003610,,"1=20,2=8,4=1,1002=2","1=20,2=8,4=1,1002=2"\n'
        '10,0,4294967294,42,normal,10,3,4294967295,1600000000,1600000000,1600000010,1600003610,,"1=20","1=20"\n',
        [("9", 0, 3600, 2, 1, ("V100",), 10)],
        {"10": "held no GPU"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_published_or_printed_is_read(case: Case) -> None:
    source = JobFile.of(case.text, "log")
    assert form_of(source).name == case.form
    log = parse_log(source)
    if case.queue:
        found = [(job.name, job.state, job.devices, job.reason, job.run_s) for job in log.jobs]
        assert [repr(row) for row in found] == [repr((*row[:4], float(row[4]))) for row in case.jobs]
        with pytest.raises(UserError, match="paceline schedule start log"):
            trace_of_log(log)
        return
    trace = trace_of_log(log)
    read = [
        (job.name, job.arrival_s, job.duration_s, job.devices, job.share, job.device_types, wait)
        for job, wait in zip(trace.jobs, trace.waits, strict=True)
    ]
    assert [row[:6] for row in read] == [(*row[:4], pytest.approx(row[4]), row[5]) for row in case.jobs]
    assert [row[6] for row in read] == pytest.approx([row[6] for row in case.jobs], nan_ok=True)
    told = {row.name: row.reason for row in trace.skipped}
    assert told.keys() == case.skipped.keys() and all(told[name].startswith(case.skipped[name]) for name in told)
    assert trace.rows == len(trace.jobs) + len(trace.skipped)


COLUMNS = {
    "JobID": "7",
    "JobName": "a b",
    "User": "ann",
    "Account": "lab",
    "Submit": f"{DAY}08:00:00",
    "Start": f"{DAY}08:05:00",
    "End": f"{DAY}09:05:00",
    "Elapsed": "01:00:00",
    "Timelimit": "2-00:00:00",
    "State": "COMPLETED",
    "AllocTRES": "cpu=8,gres/gpu:a100=4,gres/gpu=4",
    "ReqTRES": "cpu=8,gres/gpu=4",
    "NodeList": "n[1-2]",
}


@settings(max_examples=25, deadline=None)
@given(st.permutations(list(COLUMNS)), st.integers(0, 5), st.sampled_from(("", "|")), st.booleans())
def test_columns_may_come_in_any_order(order: list[str], left_out: int, end: str, plain: bool) -> None:
    gone = {"JobName", "User", "Account", "Elapsed", "ReqTRES", "NodeList"}
    names = [name for name in order if name not in gone or left_out]
    values = [COLUMNS[name] for name in names]
    if plain and not end:
        widths = [max(map(len, pair)) for pair in zip(names, values, strict=True)]
        lines = [" ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (names, values)]
        text = "\n".join((lines[0], " ".join("-" * width for width in widths), lines[1]))
    else:
        text = "\n".join("|".join(row) + end for row in (names, values))
    (job,) = parse_log(JobFile.of(text, "f")).jobs
    assert (job.name, job.run_s, job.wait_s, job.limit_s, job.devices, job.device_types) == (
        "7",
        3600,
        300,
        172800,
        4,
        ("a100",),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(CASES)),
    st.integers(0, 10**6),
    st.integers(0, 12),
    st.sampled_from(("", "|", ",", '"', "\n", "x", "{", "9" * 30)),
)
def test_damage_is_skipped_or_one_line(name: str, at: int, gone: int, new: str) -> None:
    text = CASES[name].text
    at %= len(text)
    try:
        trace_of_log(parse_log(JobFile.of(text[:at] + new + text[at + gone :], "f")))
    except UserError as error:
        assert "\n" not in str(error)


def test_the_rest_of_a_job_is_kept() -> None:
    job = parse_log(JobFile.of(CASES["kueue"].text, "w")).jobs[0]
    assert (job.limit_s, job.priority, job.topology, job.queue, job.account, job.user) == (900, 7, "rack", "team", "cq", "ml")
    assert (job.command, job.title, job.status) == ("python t.py", "a", "Succeeded")
    waiting, running = parse_log(JobFile.of(CASES["squeue --json"].text, "q")).jobs
    assert (waiting.tasks, waiting.limit_s, waiting.planned_start_s, waiting.command) == (
        (2, 3, 4),
        3600,
        1790970000,
        "/home/ann/t.sh",
    )
    assert (waiting.device_types, running.device_types, running.limit_s) == ((), ("a100",), 3600)
    spot = parse_log(JobFile.of(CASES["spot"].text, "s")).jobs
    assert [(job.priority, job.preemptible) for job in spot] == [(1, False), (0, True)]
    assert parse_log(JobFile.of(CASES["sacct --json"].text, "s")).jobs[0].limit_s == 7200


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("gres/gpu=3,gres/gpu:a100=1,gres/gpu:a40=2", [(1, "a100"), (2, "a40")]),
        ("gpu:a100:2(S:0-1),mps:0", [(2, "a100")]),
        ("gpu:2(IDX:0,3),nvme:1", [(2, "")]),
        ("gpu", [(1, "")]),
        ("gres/gpu=4,gres/gpu:a100=2", [(2, "a100"), (2, "")]),
        ("cpu=8,mem=4G,node=1", []),
    ],
)
def test_devices_of_tres_and_gres(text: str, held: list[tuple[int, str]]) -> None:
    assert [(each.count, each.device_type) for each in held_devices(text)[0]] == held


def test_shares() -> None:
    assert split_slice("nvidia_a100_80gb_pcie_1g.10gb") == ("nvidia_a100_80gb_pcie", "1g.10gb", pytest.approx(1 / 7))
    assert split_slice("a30_2g.12gb")[2] == 0.5 and split_slice("3g.40gb") == ("", "3g.40gb", 0.5)
    assert [(each.count, each.share) for each in held_devices("gres/mps=50")[0]] == [(1, 0.5)]


def test_times_and_durations() -> None:
    assert parse_time("1970-01-01T00:01:00") == parse_time("1970-01-01 01:01:00+01:00") == parse_time("60.0") == 60
    assert all(math.isnan(parse_time(text)) for text in ("Unknown", "N/A", "", "0"))
    assert parse_time("0", zero_is_never=False) == 0
    durations = {"1-02:03:04": 93784, "2-3": 183600, "1:02:10": 3730, "0:05": 5, "30": 1800, "00:00:01.500": 1}
    assert {text: parse_duration(text) for text in durations} == durations
    assert math.isnan(parse_duration("UNLIMITED")) and math.isnan(parse_minutes("4294967295")) and parse_minutes("2") == 120
    for wrong in ("soon", "1:2:3:4", "Tomorr"):
        with pytest.raises(ValueError):
            parse_time(wrong)
        with pytest.raises(ValueError):
            parse_duration(wrong)


def test_states() -> None:
    words = {
        "CANCELLED by 1000": "CANCELLED",
        "CANCELLED+": "CANCELLED",
        "OUT_OF_ME+": "OUT_OF_MEMORY",
        "PD": "PENDING",
        "6": "TIMEOUT",
    }
    assert {text: state_word(text) for text in words} == words


def test_a_pod_asks_for_what_it_needs_at_once() -> None:
    """Kubernetes, "Sidecar containers": an init container needs its devices alone, a sidecar to the end."""

    def container(gpus: int, **more: str) -> dict[str, object]:
        return {"resources": {"limits": {"nvidia.com/gpu": gpus}}, **more}

    first, sidecar, main = container(5), container(1, restartPolicy="Always"), container(2)
    for before, gpus in ((), 2), ((first,), 5), ((sidecar,), 3), ((sidecar, first), 6):
        pod = {"spec": {"initContainers": list(before), "containers": [main]}}
        assert devices_of_pod(pod)[0].count == gpus
