"""Columns of Slurm's ``sacct``, ``squeue`` and accounting database under one name each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

SACCT = "sacct -a -X -P --format=JobID,User,Account,Partition,Submit,Eligible,Start,End,Timelimit,State,ReqTRES,AllocTRES"
"""Command whose output says all that a simulation reads."""
SQUEUE = "squeue -a -o '%i|%P|%j|%u|%a|%T|%V|%S|%M|%l|%D|%b|%Q|%r|%q|%E'"
"""Command whose output says all that is read of a queue."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("jobid", "jobarrayid", "id_job", "job_id", "jobidraw"),
    "array_id": ("array_job_id", "arrayjobid", "id_array_job"),
    "array_task": ("array_task_id", "arraytaskid", "id_array_task"),
    "title": ("jobname", "name", "job_name"),
    "user": ("user", "username", "id_user", "user_name", "uid"),
    "account": ("account",),
    "queue": ("partition",),
    "qos": ("qos",),
    "submit": ("submit", "submit_time", "submittime", "time_submit"),
    "eligible": ("eligible", "eligible_time", "eligibletime", "time_eligible"),
    "start": ("start", "start_time", "starttime", "time_start"),
    "end": ("end", "end_time", "endtime", "time_end"),
    "elapsed": ("elapsed", "time", "timeused", "time_used"),
    "elapsed_s": ("elapsedraw",),
    "planned": ("planned", "reserved"),
    "left": ("time_left",),
    "limit": ("timelimit", "time_limit"),
    "limit_minutes": ("timelimitraw",),
    "state": ("state", "st", "statecompact"),
    "reason": ("reason", "nodelist(reason)", "reasonlist"),
    "nodes": ("nnodes", "nodes", "allocnodes", "numnodes", "nodes_alloc", "reqnodes"),
    "cpus": ("alloccpus", "reqcpus", "ncpus", "cpus", "numcpus", "cpus_req"),
    "node_list": ("nodelist", "nodelist(reason)", "node_list"),
    "alloc_tres": ("alloctres", "tres_alloc", "tres-alloc"),
    "alloc_gres": ("allocgres", "gres_alloc"),
    "req_tres": ("reqtres", "tres_req"),
    "job_tres": ("tres_per_job", "tres-per-job"),
    "node_tres": ("tres_per_node", "tres-per-node", "gres"),
    "req_gres": ("reqgres", "gres_req"),
    "task_tres": ("tres_per_task", "tres-per-task"),
    "tasks": ("ntasks", "tasks", "numtasks"),
    "priority": ("priority",),
    "dependency": ("dependency",),
    "command": ("submitline", "command"),
}
"""Names of each column in any case: of sacct(1) ``--format``, squeue(1) ``-o`` and ``-O``, and the database's job_table."""
NAMES: Mapping[str, str] = {name: field for field, names in COLUMNS.items() for name in names}
SACCT_WORDS = frozenset(
    [
        "jobid",
        "jobidraw",
        "jobname",
        "submit",
        "start",
        "end",
        "eligible",
        "alloctres",
        "reqtres",
        "allocgres",
        "reqgres",
        "alloccpus",
        "elapsed",
        "elapsedraw",
        "timelimit",
        "timelimitraw",
        "exitcode",
        "nnodes",
        "planned",
        "reserved",
        "state",
        "partition",
        "account",
        "user",
        "qos",
        "nodelist",
        "ncpus",
        "priority",
    ]
)
"""Columns of ``sacct`` that ``squeue`` writes otherwise, or that both have."""
SQUEUE_WORDS = frozenset(
    [
        "jobid",
        "partition",
        "name",
        "user",
        "st",
        "state",
        "time",
        "time_limit",
        "nodes",
        "nodelist(reason)",
        "reason",
        "submit_time",
        "start_time",
        "end_time",
        "tres_per_node",
        "tres_per_job",
        "tres_per_task",
        "tres_alloc",
        "account",
        "priority",
        "qos",
        "eligible_time",
        "jobarrayid",
        "array_job_id",
        "array_task_id",
        "cpus",
        "time_left",
        "schednodes",
        "nodelist",
        "min_memory",
        "features",
        "dependency",
        "command",
    ]
)
STATES: Mapping[str, str] = {
    "PD": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "ST": "STOPPED",
    "CG": "COMPLETING",
    "CF": "CONFIGURING",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
    "RQ": "REQUEUED",
    "RH": "REQUEUE_HOLD",
    "RF": "REQUEUE_FED",
    "RD": "RESV_DEL_HOLD",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
}
"""States by their short names (squeue(1), "JOB STATE CODES")."""
STATE_NUMBERS: Mapping[str, str] = {
    str(number): state
    for number, state in enumerate(
        [
            "PENDING",
            "RUNNING",
            "SUSPENDED",
            "COMPLETED",
            "CANCELLED",
            "FAILED",
            "TIMEOUT",
            "NODE_FAIL",
            "PREEMPTED",
            "BOOT_FAIL",
            "DEADLINE",
            "OUT_OF_MEMORY",
        ]
    )
}
"""States by their numbers in the database (``enum job_states`` of slurm.h)."""
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"})


@lru_cache(maxsize=4096)
def state_word(text: str) -> str:
    """Return the long name of a state: ``CANCELLED`` for ``CANCELLED by 1000``, ``CA`` and ``4``."""
    word = text.split(" ")[0].rstrip("+").upper()
    word = STATES.get(word, STATE_NUMBERS.get(word, word))
    if text.strip().endswith("+"):  # a column that was too narrow
        every = (*STATES.values(),)
        return next((state for state in every if state.startswith(word)), word)
    return word


def is_state(text: str) -> bool:
    """Return whether a cell holds a state of Slurm."""
    return state_word(text) in STATES.values() and not text.strip().isdigit()


def fields_of(header: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of each field, in the order of ``COLUMNS``."""
    by_name = {column.strip().casefold(): column for column in header}
    return {field: found for field, names in COLUMNS.items() if (found := [by_name[name] for name in names if name in by_name])}


def known_words(header: Iterable[str]) -> int:
    """Return how many columns are among those of ``sacct`` and ``squeue``; 0 without a job id."""
    names = {column.strip().casefold() for column in header}
    return len(names & (SACCT_WORDS | SQUEUE_WORDS)) if names & {"jobid", "jobidraw", "jobarrayid"} else 0


def fit(header: Iterable[str], words: frozenset[str]) -> float:
    """Return the share of a header's columns that are among ``words``."""
    names = [column.strip().casefold() for column in header]
    return sum(name in words for name in names) / max(len(names), 1)
