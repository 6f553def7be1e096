"""Queue, nodes and history from the scheduler's own programs, where it runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from paceline.errors import UserError, unknown
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.queues_file import Settings, read_queues
from paceline.scheduling.starts.nodes import KUBECTL, SINFO, parse_nodes
from paceline.scheduling.starts.queue_nodes import QueueNodes, nodes_of_quotas
from paceline.scheduling.starts.waiting_queue import Scheduler, WaitingQueue, counted_by_node, scheduler_of, settings_of
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.reader import parse_log
from paceline.scheduling.traces.record import JobLog
from paceline.scheduling.traces.snapshot import parse_queue, read_queue

LIVE: tuple[Scheduler, ...] = ("slurm", "kueue", "ray")
"""Schedulers whose programs are called."""
TIMEOUT_S = 60.0
SQUEUE = ("squeue", "-a", "-r", "-h", "-o", "%i|%P|%j|%u|%a|%T|%V|%S|%M|%l|%D|%b|%Q|%r|%N|%q|%C|%E")
SQUEUE_HEADER = (
    "JOBID|PARTITION|NAME|USER|ACCOUNT|STATE|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|PRIORITY|"
    "REASON|NODELIST|QOS|CPUS|DEPENDENCY"
)
SACCT_FIELDS = "JobID,JobName,User,Account,Partition,Submit,Eligible,Start,End,Timelimit,State,ReqTRES,AllocTRES,NNodes,QOS"
SACCT = ("sacct", "-a", "-X", "-P", "-S", "now-28days", f"--format={SACCT_FIELDS}")
WORKLOADS = ("kubectl", "get", "workloads,localqueues,clusterqueues,cohorts,resourceflavors", "-A", "-o", "json")
RAY = ("ray", "job", "list", "--format", "json")
Run = Callable[[Sequence[str]], str]


def run_program(words: Sequence[str]) -> str:
    """Return what a program prints. Raises UserError if it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise UserError(f"{words[0]} is not here", "run it where it is, and give the file that it printed") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{words[0]} did not answer within {TIMEOUT_S:g} s", "try again, or give a file") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise UserError(f"{words[0]}: {last[:200]}", "give the file that it printed elsewhere")
    return done.stdout


def read_waiting_queue(
    queue: str | Path,
    *,
    history: str | Path = "",
    nodes: str | Path = "",
    cluster: str | Fleet = "",
    queues: Settings | str | Path | None = None,
    now_s: float | None = None,
    stdin: Callable[[], str] | None = None,
    run: Run = run_program,
) -> WaitingQueue:
    """Read a queue, its nodes and its history.

    Args:
        queue: file of the queue, ``-`` for standard input, or a scheduler of ``LIVE`` whose programs are called.
        history: file of jobs that ended before, such as sacct's. ``nodes``: file of the nodes. ``cluster``: nodes in words.
        queues: settings of Slurm or Kueue, or the file that holds them; None: those of the queue's file, if it states any.
        now_s: time at which the queue was printed, in seconds since 1970; None: as the file states.
        stdin: reader of standard input. ``run``: caller of programs.

    Raises:
        UserError: a file that cannot be read, unknown nodes, settings of another scheduler.
    """
    if nodes and cluster:
        raise UserError("`nodes` and `cluster` together", "give one of them")
    if str(queue) in LIVE:
        log, past, printed = _called(str(queue), bool(history), bool(nodes or cluster), run)
    elif str(queue) == "-":
        if stdin is None:
            raise UserError("standard input is not read here", "give a file")
        log, past, printed = parse_queue(stdin(), "standard input", time.time() if now_s is None else now_s), None, None
    else:
        if not Path(queue).exists():
            raise unknown("file or scheduler", str(queue), [*LIVE, "-"])
        log, past, printed = read_queue(queue, now_s), None, None
    log = counted_by_node(log)
    if history:
        past = _on_clock(parse_log(JobFile.read(history)), log)
    if past is not None and log.nodes_as_devices:
        past = counted_by_node(past)
    stated = (read_queues(queues) if str(queues) else None) if isinstance(queues, str | Path) else queues
    settings = settings_of(log, scheduler_of(log.form), stated)
    return WaitingQueue.of(log, _nodes(log, settings, nodes, cluster, printed), past, settings=stated)


def _called(name: str, has_history: bool, has_nodes: bool, run: Run) -> tuple[JobLog, JobLog | None, JobFile | None]:
    """Return queue, history and nodes from a scheduler's programs. Unavailable history is left out."""
    if name == "ray":
        return parse_queue(run(RAY), "ray job list", time.time()), None, None
    if name == "kueue":
        return parse_queue(run(WORKLOADS), "kubectl get workloads", time.time()), None, None
    log = parse_queue(f"{SQUEUE_HEADER}\n{run(SQUEUE)}", "squeue", time.time())
    past = None
    if not has_history:
        try:
            past = parse_log(JobFile.of(run(SACCT), "sacct"))
        except UserError:
            past = None  # a cluster without accounting
    printed = None if has_nodes else JobFile.of(run(("sinfo", "-N", "-o", SINFO.split("'")[1])), "sinfo")
    return log, past, printed


def _nodes(
    log: JobLog, settings: Settings | None, nodes: str | Path, cluster: str | Fleet, printed: JobFile | None
) -> QueueNodes:
    if cluster:
        found = QueueNodes.of(Fleet.named(cluster) if isinstance(cluster, str) else cluster)
        return found.by_node() if log.nodes_as_devices else found
    if nodes:
        return parse_nodes(JobFile.read(nodes), log.nodes_as_devices)
    if printed is not None:
        return parse_nodes(printed, log.nodes_as_devices)
    if isinstance(settings, KueueSettings) and settings.queues:
        return nodes_of_quotas(settings, log.file)
    if not log.in_state("running") and not log.in_state("waiting"):
        return QueueNodes(np.zeros(0, np.int64), ())
    kind = {"kueue": "ClusterQueues", "volcano": "Queues"}.get(log.form, "")
    print_them = f"add the {kind} to the file, " if kind else ""
    raise UserError(
        f"{log.file} does not say which nodes the cluster has",
        f"{print_them}give `cluster` 16x8xA100, or `nodes` with what {KUBECTL if kind else SINFO} printed",
    )


def _on_clock(history: JobLog, log: JobLog) -> JobLog:
    """Return the history if its clock is that of the queue. Raises UserError for times that cannot be compared."""
    if "own" in (history.clock, log.clock) and history.clock != log.clock:
        raise UserError(f"{history.file} counts time from its own start", "give a history with dates, as sacct prints them")
    return history
