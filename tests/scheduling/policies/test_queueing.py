"""Heuristic of devices on a queueing model of throughput."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.policies.queueing import queueing
from scheduling_toys import SMALL, TabledRun, elastic, rigid, state


def throughput(compute: float, exchange: float, most: int) -> np.ndarray:
    """Steps a second of 0 to ``most`` workers: mean value analysis of one server and a delay (Reiser and Lavenberg, 1980)."""
    table, queue = np.zeros(most + 1), 0.0
    for workers in range(1, most + 1):
        wait = exchange * (1 + queue)
        table[workers] = workers / (compute + wait)
        queue = table[workers] * wait
    return table


def bounded(name: str, steps: float, exchange: float) -> tuple[object, object]:
    job = elastic(name, steps)
    return job, TabledRun(job, SMALL.types, {"T4": dict(enumerate(throughput(1.0, exchange, 8)[1:].tolist(), 1))})


def test_a_job_whose_exchange_is_the_bottleneck_gets_few() -> None:
    jobs, outlooks = zip(bounded("slow", 100, 0.5), bounded("scales", 100, 0.01), strict=True)
    slow, scales = queueing(state(jobs, outlooks=outlooks)).devices.tolist()
    assert slow + scales == 8 and slow < scales


def test_while_others_wait_nobody_grows_onto_inefficient_devices() -> None:
    pairs = [bounded("a", 10, 1.0), *((rigid(f"r{i}", 50, 5), None) for i in range(2))]
    jobs = [job for job, _ in pairs]
    usual = state(jobs)
    outlooks = [outlook or usual.outlooks[index] for index, (_, outlook) in enumerate(pairs)]
    table = throughput(1.0, 1.0, 8)
    devices = queueing(state(jobs, outlooks=outlooks)).devices
    most = 1 + int(np.argmin(np.diff(table)[1:] >= 0.5 * table[1]))
    assert devices.tolist() == [most, 5, 0] and most < 3


def test_the_shortest_run_where_not_all_can() -> None:
    assert queueing(state([elastic(f"{i}", 100 - i) for i in range(10)])).devices.tolist() == [0, 0] + [1] * 8
