"""One step as a schedule: closed forms, and what no change of a duration may do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.prediction import Predictor
from paceline.prediction.step.step_model import StepModel
from paceline.prediction.step.timeline import StepDurations, columns, pieces, schedule_step, sums
from paceline.strategy import Strategy
from prediction_toys import IDEAL, make_cluster, make_workload

NET, PLACE = make_workload(layers=4), make_cluster(1, 4)
SECONDS = st.floats(0, 10)


def plain(**durations: Any) -> StepDurations:
    """A step of three buckets whose gradients are ready after 1, 2 and 3 s of a backward pass of 3 s."""
    usual: dict[str, Any] = {
        "micro_steps": 1,
        "forward": 2.0,
        "backward": 3.0,
        "forward_units": (),
        "backward_units": (),
        "ready": (1.0, 2.0, 3.0),
        "exchange": (0.5, 0.5, 0.5),
        "gather_forward": (),
        "gather_backward": (),
        "after": 0.0,
        "update": 0.25,
        "feed": 0.0,
    }
    return StepDurations(**{**usual, **durations})


@pytest.mark.parametrize(
    ("durations", "overlap", "step"),
    [
        ({}, True, 2 + 3 + 0.5 + 0.25),  # only the last bucket is waited for
        ({}, False, 2 + 3 + 1.5 + 0.25),  # all three
        ({"exchange": (3.0, 3.0, 3.0)}, True, 2 + 1 + 9 + 0.25),  # from the first bucket on, the network never rests
        ({"exchange": ()} | {"ready": ()}, True, 5.25),  # nothing is exchanged
        ({"micro_steps": 3}, True, 3 * 5 + 0.5 + 0.25),  # exchanged once, after the last
        ({"after": 1.0}, True, 5.75 + 1.0),  # gathers behind the update
        ({"feed": 20.0}, True, 20.0),  # a slow loader
        ({"feed": 1.0}, True, 5.75),  # a fast one
        ({"penalty": 1.0}, True, 5.75 + 1.0),  # the second that both worked is lost
        ({"penalty": 1.0}, False, 6.75),  # they never do
    ],
)
def test_closed_forms_of_a_step_that_exchanges_behind_the_last_micro_step(
    durations: dict[str, Any], overlap: bool, step: float
) -> None:
    schedule = schedule_step(plain(**durations), overlap, False)
    assert schedule.step == pytest.approx(step)
    assert schedule.update_start <= schedule.gather_start <= schedule.step


def shared(exchange: float = 0.0, gather: float = 0.0, **durations: Any) -> StepDurations:
    """Two units of FSDP: forward 1 s each, backward 2 s each."""
    return plain(
        forward=2.0,
        backward=4.0,
        forward_units=(1.0, 1.0),
        backward_units=(2.0, 2.0),
        ready=(),
        exchange=(exchange, exchange),
        gather_forward=(gather, gather),
        gather_backward=(gather, gather),
        **durations,
    )


@pytest.mark.parametrize(
    ("exchange", "gather", "overlap", "step"),
    [
        (0.0, 0.0, True, 6.25),
        (0.0, 0.5, True, 0.5 + 2 + 0.5 + 4 + 0.25),  # the first gather of each pass has nothing to hide behind
        (0.5, 0.0, True, 6 + 0.5 + 0.25),  # the last unit's gradients
        (0.5, 0.0, False, 6 + 1.0 + 0.25),
        (0.0, 0.5, False, 6 + 4 * 0.5 + 0.25),
    ],
)
def test_closed_forms_where_weights_are_shared_out(exchange: float, gather: float, overlap: bool, step: float) -> None:
    assert schedule_step(shared(exchange, gather), overlap, True).step == pytest.approx(step)


@given(st.lists(st.tuples(*[SECONDS] * 5), min_size=1, max_size=5), st.booleans())
def test_the_network_carries_one_collective_of_a_micro_step_at_a_time(
    units: list[tuple[float, float, float, float, float]], overlap: bool
) -> None:
    """Gathers and reduce-scatters of FSDP follow each other on one stream: a gather waits for the scatter in front of it."""
    forward, backward, exchange, fetch, again = zip(*units, strict=True)
    durations = {"forward": sum(forward), "backward": sum(backward), "forward_units": forward, "backward_units": backward}
    moves = {"exchange": exchange, "gather_forward": fetch, "gather_backward": again}
    placed = schedule_step(plain(ready=(), **durations, **moves), overlap, True)
    starts = (placed.exchange_starts, placed.gather_forward_starts, placed.gather_backward_starts)
    bars = sorted(
        (at, at + s) for ats, each in zip(starts, moves.values(), strict=True) for at, s in zip(ats, each, strict=True)
    )
    assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(bars))


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5),
    st.lists(SECONDS, min_size=5, max_size=5),
    st.booleans(),
    st.integers(1, 3),
)
def test_arrays_of_candidates_take_as_long_as_each_alone(
    buckets: list[tuple[float, float]], forwards: list[float], overlap: bool, times: int
) -> None:
    gaps, exchange = zip(*buckets, strict=True)
    ready = np.cumsum(gaps)
    alone = [
        plain(forward=f, backward=float(ready[-1]), ready=ready.tolist(), exchange=exchange, micro_steps=times, penalty=0.3)
        for f in forwards
    ]
    together = replace(alone[0], forward=np.array(forwards), micro_steps=np.full(5, times))
    expected = [schedule_step(p, overlap, False).step for p in alone]
    assert schedule_step(together, overlap, False, np.maximum).step == pytest.approx(expected)


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
@pytest.mark.parametrize("overlap", [True, False])
def test_pieces_of_many_candidates_are_those_of_each(sharding: str, overlap: bool) -> None:
    """Buckets that are joined for many candidates end when they do one by one."""
    strategy = Strategy.of(world_size=4, global_batch_size=16, sharding=sharding, optimizer="sgd", bucket_bytes=4_000_000)
    model = StepModel(workload=NET, constants=IDEAL, overlap=overlap)
    step = model.step(PLACE, strategy)
    costs, is_shared = step.costs, strategy.parallelism.sharding.weights
    at = columns(step.plan, len(NET.layers), is_shared)
    scales = (0.01, 0.5, 1.0, 30.0)
    forward, backward = (np.array([scale * sums(x.total)[at] for scale in scales]) for x in (costs.forward, costs.backward))
    rest = (costs.exchange, is_shared, 1, 0.1, 0.0, 0.3)
    each = [schedule_step(pieces(f, b, *rest), overlap, is_shared).step for f, b in zip(forward, backward, strict=True)]
    many = schedule_step(pieces(forward, backward, *rest), overlap, is_shared, np.maximum).step
    assert many == pytest.approx(each, rel=1e-12)


def test_units_are_bounded_where_the_lowest_layers_of_buckets_are() -> None:
    strategy = Strategy.of(world_size=4, global_batch_size=16, optimizer="sgd", bucket_bytes=4_000_000, first_bucket_bytes=1)
    plan = StepModel(workload=NET, constants=IDEAL).plan(PLACE, strategy)
    assert plan.first.tolist() == [3, 2, 1, 0]
    assert columns(plan, 4, False).tolist() == [3, 2, 1, 0, 4]
    assert columns(plan, 4, True).tolist() == [0, 1, 2, 3, 4]


@given(st.sampled_from(["ddp", "zero1", "zero2", "zero3"]), st.integers(1, 3), st.floats(1e6, 1e12), st.booleans())
def test_what_is_waited_for_sums_to_the_step_and_events_fill_it(
    sharding: str, times: int, network: float, recompute: bool
) -> None:
    strategy = Strategy.of(
        world_size=4, global_batch_size=24, sharding=sharding, grad_accum_steps=times, recompute=recompute, optimizer="adam"
    )
    step = Predictor(constants=IDEAL).model(NET).step(make_cluster(1, 4, network=network), strategy)
    assert sum(step.exposed.values()) == pytest.approx(step.seconds)
    assert min(step.exposed.values()) >= -1e-12
    assert max(event.end_s for event in step.events()) == pytest.approx(step.seconds)


@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_slower_links_make_no_step_shorter(between: float, inside: float) -> None:
    strategy = Strategy.of(world_size=4, global_batch_size=16, optimizer="sgd")
    step = StepModel(workload=NET, constants=IDEAL).step(make_cluster(2, 2), strategy)
    assert step.seconds_with_links(1.0, 1.0) == pytest.approx(step.seconds)
    assert step.seconds_with_links(between, inside) >= step.seconds * (1 - 1e-12)
