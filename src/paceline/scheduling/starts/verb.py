"""The verb ``schedule_start``: when each waiting job of a live queue starts and ends."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.queues.queues_file import Settings
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.hindcast import Hindcast, Say, past_starts
from paceline.scheduling.starts.lengths import LengthDistribution
from paceline.scheduling.starts.live_source import read_waiting_queue
from paceline.scheduling.starts.new_job import NewJob, parse_new
from paceline.scheduling.starts.policy_futures import Progress
from paceline.scheduling.starts.sooner import Predict, sooner
from paceline.scheduling.starts.start_answer import StartAnswer
from paceline.scheduling.starts.wait_reasons import wait_reasons
from paceline.scheduling.starts.waiting_queue import WaitingQueue

FEWEST = 8
"""Fewest futures that give a range."""


def schedule_start(
    queue: WaitingQueue | str | Path,
    *,
    job: str = "",
    new: str = "",
    history: str | Path = "",
    nodes: str | Path = "",
    cluster: str | Fleet = "",
    queues: Settings | str | Path | None = None,
    now_s: float | None = None,
    futures: int = 0,
    seed: int = 0,
    hindcasts: int | None = None,
    predict: Predict | None = None,
    progress: Progress | None = None,
    kept: MutableMapping[str, Hindcast] | None = None,
    say: Say | None = None,
    stdin: Callable[[], str] | None = None,
) -> StartAnswer:
    """Forecast the starts of a live queue: ``paceline.schedule_start("squeue.txt", cluster="16x8xA100", history="sacct.txt")``.

    Args:
        queue: a queue, a file of one (``squeue``, ``sacct``, ``kubectl get workloads -o yaml``, Ray's list), ``-`` for standard
            input, or ``slurm``, ``kueue``, ``ray``, whose programs are called.
        job: name of the only job that is asked for. ``new``: job in words that is added to the queue.
        history: file of jobs that ended before. ``nodes``: file of the nodes. ``cluster``: the nodes in words.
        queues: settings of Slurm or Kueue as ``paceline.schedule`` takes them, or the file that holds them: the policy of that
            scheduler is simulated with them. None: those that the file of a Kueue queue states, and Slurm's printed priorities.
        now_s: time at which the queue was printed, in seconds since 1970; None: as the file states.
        futures: number of simulated futures; 0: 64, or 8 to 32 under a policy with settings. ``seed``: seed of their draws.
        hindcasts: most past starts of the history on which the ranges are checked and fitted; 0: none; None: 100, or 0 under a
            policy with settings.
        predict: predictor of the length of a job from its command line; None: lengths follow from history and limits.
        progress: callback that receives the number of futures that are done, and of all.
        kept: hindcasts of an earlier call on the same queue, which are not made again.
        say: receives the progress of the hindcasts.
        stdin: reader of standard input.

    Raises:
        UserError: a file that cannot be read, unknown nodes, an unknown job, a new job in another form.
    """
    began = time.perf_counter()
    if job and new:
        raise UserError("`job` and `new` together", "ask for one of them")
    if hindcasts is not None and hindcasts < 0:
        raise UserError(f"{hindcasts} hindcasts", "give 0 or more")
    if futures and futures < FEWEST:
        raise UserError(f"{futures} futures", f"give at least {FEWEST}")
    read = queue
    if not isinstance(read, WaitingQueue):
        read = read_waiting_queue(read, history=history, nodes=nodes, cluster=cluster, queues=queues, now_s=now_s, stdin=stdin)
    added = parse_new(new, read) if new else None
    present = read.adding(added.job) if added else read
    if added and added.remarks:
        present = replace(present, remarks=(*present.remarks, *added.remarks))
    asked = added.job if added else present.job(job) if job else None
    if asked and asked.array and asked.array == job:
        said = f"{job} is an array: the answer is for {asked.name}, the first of its waiting tasks."
        present = replace(present, remarks=(said, *present.remarks))
    predicted = _predicted(present, predict, added)
    if added and added.words and predict and added.job.name not in predicted:
        present = replace(present, remarks=(*present.remarks, _unpredicted(added, present)))
    options = ForecastOptions(futures=futures, seed=seed)
    past = past_starts(read, options, hindcasts, say=say, kept=kept)
    stretched = past.stretched if past else None
    forecaster = Forecaster(present, options, predicted=predicted, progress=progress, stretched=stretched)
    forecast = forecaster.forecast([asked] if asked else ())
    found = forecast.jobs
    return StartAnswer(
        queue=present,
        jobs=found,
        reasons={each.job.name: wait_reasons(forecaster, present, each.job, forecast.preemptions) for each in found},
        preemptions=forecast.preemptions,
        sooner=sooner(forecaster, found[0], predict) if asked and found else (),
        notes=(*forecast.notes, *past.notes()),
        checked=past.coverage(),
        futures=forecaster.options.futures,
        seed=seed,
        seconds=time.perf_counter() - began,
        asked=asked.name if asked else "",
    )


def _unpredicted(added: NewJob, queue: WaitingQueue) -> str:
    """Return the remark that the work of a new job tells no length."""
    most = max((int(queue.nodes.devices[node]) for node in queue.nodes.pool(added.job)), default=0)
    wide = added.job.nodes > 1 or added.job.devices > most
    fix = "; several nodes need their network, as in --cluster '2x8xA100, 100Gb/s'" if wide else ""
    return f"{' '.join(added.words)} on {added.job.devices} devices is not predicted: state a length, as in 'for 3h'{fix}."


def _predicted(queue: WaitingQueue, predict: Predict | None, added: NewJob | None) -> dict[str, LengthDistribution]:
    """Return the lengths that command lines or the user tell, by the jobs' names."""
    found: dict[str, LengthDistribution] = {}
    if added is not None and added.run_s:
        found[added.job.name] = LengthDistribution(np.array([added.run_s]), np.ones(1), "what you state")
    if predict is None:
        return found
    for job in (*queue.running, *queue.waiting):
        if job.command and job.name not in found and (length := predict(job)) is not None:
            found[job.name] = length
    return found
