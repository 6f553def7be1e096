"""The queueing model of throughput against workers, and the heuristic on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.policies.queueing import profiled, queueing, throughput
from scheduling_toys import SMALL, TabledRun, elastic, rigid, state


@given(st.floats(0.01, 10), st.floats(0.001, 5))
def test_throughput_rises_to_what_the_server_bears(compute: float, exchange: float) -> None:
    table = throughput(compute, exchange, 64)
    assert table[1] == pytest.approx(1 / (compute + exchange))
    assert (np.diff(table) >= -1e-9).all() and table[-1] <= 1 / exchange + 1e-9
    assert (table <= np.arange(65) * table[1] + 1e-9).all()


def test_two_workers_by_hand() -> None:
    """The second finds the first at the server for half of the time where both take 1 s."""
    assert throughput(1.0, 1.0, 2)[2] == pytest.approx(2 / 2.5)


@given(st.floats(0.01, 10), st.floats(0.001, 5), st.integers(1, 4))
def test_one_profiling_run_gives_the_model(compute: float, exchange: float, workers: int) -> None:
    true = throughput(compute, exchange, 16)
    assert profiled(workers / true[workers], exchange, 16, workers) == pytest.approx(true, rel=1e-4)


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
