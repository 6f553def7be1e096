"""What a device computes and what it waits for fill the step: nothing twice, no gap, and each wait has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline import Cluster, Prediction, Predictor, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction.step.waits import BUBBLE, OVERLAP_LOSS, in_turn, wait, waits
from paceline.record import Event
from paceline.workload.builders.transformer import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=512, heads=8, vocabulary=4096), 256)


def check(p: Prediction) -> dict[str, float]:
    """The sum of the bars is the step, and they follow each other. Returns the seconds of each kind of wait."""
    bars = sorted((e for e in p.timeline if e.lane in ("compute", "wait")), key=lambda e: (e.start_s, e.end_s))
    assert sum(e.duration_s for e in bars) == pytest.approx(p.step_time_s, rel=1e-9)
    assert bars[0].start_s == pytest.approx(0, abs=1e-9 * p.step_time_s)
    for before, after in pairwise(bars):
        assert after.start_s == pytest.approx(before.end_s, abs=1e-9 * p.step_time_s), (before, after)
    assert bars[-1].end_s == pytest.approx(p.step_time_s, rel=1e-9)
    sums: dict[str, float] = {}
    for bar in bars:
        if bar.lane == "wait":
            sums[bar.name] = sums.get(bar.name, 0.0) + bar.duration_s
    assert all(name in (BUBBLE, OVERLAP_LOSS) or name.startswith("wait for ") for name in sums)
    return sums


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.sampled_from([(1, 1, 1), (1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 4, 1), (1, 2, 2), (4, 2, 1)]),
    st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(["1f1b", "gpipe", "zero_bubble"]),
    st.sampled_from(["dense", "dense", "terngrad", "int8"]),
    st.sampled_from(["1Gb/s", "25Gb/s", "InfiniBand NDR"]),
    st.sampled_from(["ordinary", "tuned"]),
    st.sampled_from([0.0, 20.0, 1e5]),
    st.booleans(),
    st.sampled_from([None, False]),
    st.sampled_from([frozenset(), frozenset({"pipeline bubble"}), frozenset({"network"})]),
)
def test_the_sum_of_the_bars_is_the_step(
    mesh: tuple[int, int, int],
    sharding: str,
    times: int,
    schedule: str,
    compression: str,
    network: str,
    software: str,
    loader: float,
    recompute: bool,
    overlap: bool | None,
    free: frozenset[str],
) -> None:
    tensor, pipeline, virtual = mesh
    place = Cluster.named("2x8 A100", network)
    predictor = Predictor(framework=software, loader=loader, overlap=overlap, free=free)  # type: ignore[arg-type]
    try:
        strategy = Strategy.of(
            world_size=16,
            global_batch_size=16 * times,
            precision="bf16",
            tensor=tensor,
            pipeline=pipeline,
            virtual_stages=virtual,
            sharding=sharding,
            grad_accum_steps=times,
            schedule=schedule,
            compression=compression,
            recompute=recompute,
        )
        p = predictor.step(GPT, place, strategy)
    except UserError:
        assume(False)
        return
    named = check(p)
    if pipeline > 1:
        idle = p.exposed["pipeline bubble"] + p.exposed["pipeline send"]
        assert named.get(BUBBLE, 0.0) == pytest.approx(idle, abs=1e-6 * p.step_time_s)
    else:
        assert BUBBLE not in named


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_the_overlap_loss_is_drawn_as_long_as_it_is(sharding: str) -> None:
    place = Cluster.named("2x8 A100", "100Gb/s RoCE")
    strategy = Strategy.of(world_size=16, global_batch_size=256, precision="bf16", sharding=sharding, optimizer="adam")
    predictor = Predictor()
    step = predictor.model(GPT).step(place, strategy)
    named = check(predictor.step(GPT, place, strategy))
    assert step.schedule.penalty > 0
    assert named[OVERLAP_LOSS] == pytest.approx(float(step.schedule.penalty))
    plain = predictor.changed(constants=replace(predictor.typical, overlap_penalty=0.0))
    assert OVERLAP_LOSS not in check(plain.step(GPT, place, strategy))


def test_a_step_that_waits_for_its_samples_says_so() -> None:
    place, strategy = Cluster.named("8 A100"), Strategy.of(world_size=8, global_batch_size=64)
    slow = check(Predictor(loader=10.0).step(GPT, place, strategy))
    fast = Predictor().step(GPT, place, strategy)
    assert slow["wait for input"] == pytest.approx(6.4 - fast.step_time_s)


def bar(name: str, lane: str, start: float, end: float) -> Event:
    return Event(name=name, lane=lane, start_s=start, duration_s=end - start)


def described(rows: Sequence[Event]) -> list[tuple[str, float, float]]:
    return [(row.name, row.start_s, row.end_s) for row in rows]


def test_a_gap_is_named_by_what_runs_in_it() -> None:
    bars = [
        *(bar("forward", "compute", 0, 1), bar("backward", "compute", 3, 5), bar("optimizer", "compute", 10, 11)),
        *(bar("gather b0", "network", 0.5, 2), bar("gather b1", "network", 2, 3), bar("encode b0", "codec", 4, 7)),
        *(bar("push b0", "network", 6, 8), bar("input", "input", 0, 13)),
    ]
    loss = wait(OVERLAP_LOSS, 8.5, 1.5)
    assert described(waits(bars, 13, [loss])) == [
        ("wait for gather", 1, 3),
        ("wait for encode", 5, 6),
        ("wait for push", 6, 8),
        ("wait for input", 8, 8.5),
        (OVERLAP_LOSS, 8.5, 10),
        ("wait for input", 11, 13),
    ]
    assert described(waits([bars[0]], 2, otherwise=BUBBLE)) == [(BUBBLE, 1, 2)]


def test_waits_in_turn() -> None:
    assert described(list(in_turn(1.0, [("a", 2.0), ("b", 0.0), ("c", 1.0)]))) == [("a", 1.0, 3.0), ("c", 3.0, 4.0)]
