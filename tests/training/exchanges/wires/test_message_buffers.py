"""Memory for messages: lent once at a time, never again after an error; and a warm step allocates none for any exchange."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from distributed import launch_once
from paceline import codecs
from paceline.codecs import arrays
from paceline.strategy import EXCHANGES, Exchange
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import own_wires
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.message_buffers import FRESH, BufferPool, Buffers
from paceline.training.exchanges.wires.meter import Meter
from strategy_toys import WAYS

SMALL = 256  # bytes: below every message of the cases, above an agreement on three tensors
WARM = 2  # steps
SIZES = {"a": 9001, "b": 70, "c": 20_011, "dense": 5000}
CORRECTED = ("topk", "sign", "inceptionn-scaled")
CASES = [(name, way, "error" * (name in CORRECTED)) for name in sorted(codecs.names()) for way in WAYS]
CASES += [("topk", "ring", "momentum"), ("ternary", "hierarchical", ""), ("int8", "hierarchical", "")]
CASES += [("bf16 gradients", "sharded", ""), ("int4", "dense pull", ""), ("ternary", "dense pull", ""), ("ternary", "NaN", "")]


class _Fresh(BufferPool):
    """As before there was a pool: every message in memory of its own."""

    @contextmanager
    def lent(self) -> Any:
        yield FRESH


def setup_of(case: tuple[str, str, str], wire: Wire) -> ExchangeSetup:
    name, way, corrected = case
    codec = codecs.get("ternary" if name == "bf16 gradients" else name)
    feedback = {"": None, "error": Feedback(), "momentum": Feedback(0.9)}[corrected]
    inner, outer = own_wires(wire, 2) if way == "hierarchical" and wire.world_size == 2 else (None, wire)
    exchange = way if way in WAYS else "sharded"
    pull = way != "dense pull"
    return ExchangeSetup(
        codec=codec, exchange=EXCHANGES[exchange], world=wire, outer=outer, inner=inner, feedback=feedback, compress_pull=pull
    )


class Run:
    """The steps of one case on this rank."""

    def __init__(self, case: tuple[str, str, str], wire: Wire) -> None:
        specs, at = [], 0
        for name, size in SIZES.items():
            specs.append(TensorSpec(name, (size,), at))
            at += size
        self.wire, self.case = wire, case
        self.layout, self.setup = Layout(specs, {"dense"}), setup_of(case, wire)
        dtype = torch.bfloat16 if case[0] == "bf16 gradients" else torch.float32
        self.parts = {name: torch.empty(size, dtype=dtype) for name, size in SIZES.items()}
        self.work = torch.empty(room(self.setup, self.layout))
        self.step, self.digests = 0, []

    def prepare(self) -> Gradients:
        self.step += 1
        generator = torch.Generator().manual_seed(100 * self.step + self.wire.rank)
        for part in self.parts.values():
            part.copy_(torch.randn(part.numel(), generator=generator))
        if self.case[1] == "NaN":
            self.parts["b"][3] = torch.nan
        return Gradients(layout=self.layout, parts=self.parts, workspace=self.work, seed=1, step=self.step)

    def finish(self, gradients: Gradients) -> None:
        exchange_group(self.setup, gradients)
        flat = torch.cat([part.float() for part in self.parts.values()])
        self.digests.append(hashlib.sha256(flat.numpy().tobytes()).hexdigest())


def allocated(runs: list[Run]) -> dict[Any, list[int]]:
    """Bytes of every larger allocation of torch in one more step of each, and -1 for each array of ours."""
    before, made = (arrays.empty_bytes, arrays.empty_floats), []
    arrays.empty_bytes, arrays.empty_floats = (lambda *args, make=make: made.append(-1) or make(*args) for make in before)
    found: dict[Any, list[int]] = {}
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            for index, each in enumerate(runs):
                gradients, made = each.prepare(), []
                with torch.profiler.record_function(f"case {index}"):
                    exchange_group(each.setup, gradients)
                found[each.case] = made
    finally:
        arrays.empty_bytes, arrays.empty_floats = before
    events = profile.profiler.kineto_results.events()
    spans = [event for event in events if event.name().startswith("case ")]
    for event in events:
        if event.name() == "[memory]" and event.nbytes() > SMALL:
            for span in spans:
                if span.start_ns() <= event.start_ns() <= span.start_ns() + span.duration_ns():
                    found[runs[int(span.name()[5:])].case].append(event.nbytes())
    return found


def every_case(rank: int, workers: int) -> dict[str, Any]:
    Exchange.chunk_elements = 15_000
    results: dict[str, Any] = {}
    for kind, pool in (("pooled", BufferPool), ("fresh", _Fresh)):
        wires = [Wire(dist.group.WORLD, torch.device("cpu"), Meter(rank)) for _ in CASES]
        for wire in wires:
            wire.pool = pool()
        runs = [Run(case, wire) for case, wire in zip(CASES, wires, strict=True)]
        for each in runs:
            for _ in range(WARM):
                each.finish(each.prepare())
        results[kind + " sizes"] = allocated(runs)
        results[kind] = {each.case: each.digests for each in runs}
    return results


@pytest.mark.long
@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3])
def test_a_warm_step_allocates_no_memory_for_messages_and_has_the_bits_of_fresh_memory(workers):
    ranks = launch_once(every_case, workers)
    for r in ranks:
        for case in CASES:
            # Inside a node it is the engine's own reduce-scatter and all-gather that copy.
            engine = case[1] == "hierarchical" and workers == 2
            assert not r["pooled sizes"][case] or engine, case
            assert r["fresh sizes"][case], case  # the profiler sees messages of fresh memory
            assert r["pooled"][case] == r["fresh"][case] == ranks[0]["pooled"][case], case


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(1, 4))
def test_what_is_taken_together_is_apart_and_the_same_memory_later(counts, rounds):
    buffers = Buffers()
    places = []
    for _ in range(rounds):
        taken = [buffers.take(count) for count in counts]
        for value, each in enumerate(taken):
            each.fill_(value)
        assert all((each == value).all() and each.numel() == counts[value] for value, each in enumerate(taken))
        assert all(each.data_ptr() % 64 == 0 for each in taken if each.numel())
        places.append([each.data_ptr() for each in taken if each.numel()])
        buffers.reuse()
    assert all(place == places[1] for place in places[1:])


def test_a_pool_lends_to_one_at_a_time_and_the_same_again():
    pool = BufferPool()
    with pool.lent() as first, pool.lent() as second:
        assert first is not second
    with pool.lent() as again:
        assert again is first


def test_after_an_error_nobody_gets_the_memory_that_a_send_may_still_read():
    pool = BufferPool()
    with pytest.raises(ValueError), pool.lent() as lost:
        raise ValueError
    with pool.lent() as other:
        assert other is not lost
    with pool.lent() as again:
        assert again is other

    def chunk() -> Any:
        with pool.lent() as buffers:
            yield buffers

    abandoned = chunk()
    held = next(abandoned)
    abandoned.close()
    with pool.lent() as other:
        assert other is not held


def test_floats_are_as_many_numbers():
    assert Buffers().floats(5).shape == (5,) and FRESH.floats(5).dtype == torch.float32
