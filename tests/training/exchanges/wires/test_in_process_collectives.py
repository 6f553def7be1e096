"""N ranks in one process give the bits that N processes give; and what stands for DDP in the studies does what DDP does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import nn

from distributed import launch
from each_row import each_row
from paceline.models.vision.cifar import cifar10_terngrad
from paceline.strategy import COMPRESSIONS, BucketPlan, GradientExchange, plan_bucket
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from paceline.training.exchanges.wires.meter import Meter
from strategy_toys import describe

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

T = TypeVar("T")
SHAPES = ((65, 70), (3,), (2048,), (5, 7, 11, 13), (10, 65))
WAYS = (("terngrad", "sharded"), ("inceptionn-scaled", "ring"), ("int8", "parameter_server"), ("topk", "allgather"))
STEPS = 3


def exchanged(wire: Wire) -> dict[str, Any]:
    """Each exchange's means after some steps of seeded gradients, different on every rank, and the bytes sent."""
    tensors, offset = [], 0
    for number, shape in enumerate(SHAPES):
        tensors.append(TensorSpec(f"layer{number}.weight", shape, offset))
        offset += tensors[-1].elements
    results: dict[str, Any] = {}
    for name, exchange in WAYS:
        described = GradientExchange(name, exchange)
        setup = make_setup(described, wire, Sample())
        assert setup is not None
        layout = Layout(tensors[::-1], described.description.dense(tensors), described.description.format.block)
        flat = torch.empty(room(setup, layout))
        wire.meter.begin_step()
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(1000 * step + wire.rank)
            parts = {t.name: 1e-3 * torch.randn(t.elements, generator=generator) for t in tensors}
            gradients = Gradients(layout=layout, parts=parts, workspace=flat, seed=7, step=step)
            assert not exchange_group(setup, gradients)
            results[f"{name} {step}"] = torch.cat(list(parts.values()))
        results[f"{name} bytes"] = wire.meter.sent_bytes
    return results


def over_gloo(rank: int, workers: int) -> dict[str, Any]:
    return exchanged(Wire(dist.group.WORLD, torch.device("cpu"), Meter(rank)))  # type: ignore[arg-type]


def test_one_process_gives_the_bits_of_several() -> None:
    real, local = launch(over_gloo, 3), LocalGroup(3).run(exchanged)
    for there, here in zip(real, local, strict=True):
        assert there.keys() == here.keys()
        for key, value in there.items():
            same = torch.equal(value, here[key]) if isinstance(value, torch.Tensor) else value == here[key]
            assert same, key


def test_every_collective_against_its_meaning() -> None:
    n = 4

    def work(wire: LocalWire) -> None:
        mine = torch.arange(8.0) + 10 * wire.rank
        everyone = [torch.arange(8.0) + 10 * r for r in range(n)]
        total = torch.stack(everyone).sum(0)
        assert torch.equal(wire.all_reduce(mine.clone()).wait(), total)
        assert torch.equal(wire.all_reduce(mine.clone(), dist.ReduceOp.MAX).wait(), everyone[-1])
        assert torch.equal(wire.reduce_scatter(torch.empty(2), mine, "rs").wait(), total[2 * wire.rank :][:2])
        assert torch.equal(wire.all_gather(torch.empty(32), mine, "ag").wait(), torch.cat(everyone))
        message = torch.full((wire.rank,), wire.rank, dtype=torch.uint8)
        left = (wire.rank - 1) % n
        assert wire.shift(message, left, "s").wait().tolist() == [left] * left
        to = [torch.tensor([10 * wire.rank + j], dtype=torch.uint8) for j in range(n)]
        assert [int(m) for m in wire.all_to_all(to, [1] * n, "a").wait()] == [10 * r + wire.rank for r in range(n)]

    LocalGroup(n).run(work)


def test_a_rank_that_fails_ends_the_others() -> None:
    def work(wire: LocalWire) -> None:
        if wire.rank == 1:
            raise ZeroDivisionError("rank 1")
        wire.all_reduce(torch.ones(1)).wait()

    with pytest.raises(ZeroDivisionError):
        LocalGroup(3).run(work)


def test_ranks_that_call_different_things_are_told() -> None:
    def work(wire: LocalWire) -> None:
        if wire.rank:
            wire.all_reduce(torch.ones(1)).wait()
        else:
            wire.all_gather(torch.ones(2), torch.ones(1), "x").wait()

    with pytest.raises(RuntimeError, match="where another rank called"):
        LocalGroup(2).run(work)


def test_a_wrong_length_is_told() -> None:
    def work(wire: LocalWire) -> None:
        wire.shift(torch.zeros(3, dtype=torch.uint8), 4, "hop").wait()

    with pytest.raises(RuntimeError, match="3 bytes came, 4 were expected"):
        LocalGroup(2).run(work)


def _network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 4))


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 40, generator=generator), torch.randint(4, (16,), generator=generator)


def low_rank_gloo(rank: int, workers: int) -> list[torch.Tensor]:
    """Gradients that PyTorch's own hook leaves, step by step."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(_network())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=5)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    found = []
    for step in range(6):
        x, y = _batch(rank, step)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))  # type: ignore[union-attr]
    return found


def test_low_rank_of_the_studies_is_pytorchs() -> None:
    from replica import Replica

    def work(wire: LocalWire) -> list[torch.Tensor]:
        replica = Replica(_network(), GradientExchange("powersgd", options={"rank": 2}), wire, seed=5)
        found = []
        for step in range(6):
            replica.gradients(*_batch(wire.rank, step))
            replica.exchange()
            found.append(torch.cat([p.grad.reshape(-1) for p in replica.model.parameters()]))  # type: ignore[union-attr]
        return found

    real, local = launch(low_rank_gloo, 2), LocalGroup(2).run(work)
    for step in range(6):
        assert torch.equal(local[0][step], local[1][step])
        torch.testing.assert_close(local[0][step], real[0][step], rtol=1e-3, atol=1e-6)


def test_the_quick_network_is_the_same_function() -> None:
    from replica import quick

    torch.manual_seed(0)
    slow = cifar10_terngrad()
    torch.manual_seed(0)
    fast = quick(cifar10_terngrad())
    x, y = torch.randn(8, 3, 24, 24), torch.randint(10, (8,))
    for model in (slow, fast):
        nn.functional.cross_entropy(model(x), y).backward()
    assert not any(isinstance(m, nn.LocalResponseNorm) for m in fast.modules())
    torch.testing.assert_close(fast(x), slow(x), rtol=1e-4, atol=1e-5)
    for a, b in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6)


def in_nodes(world: LocalGroup, local: int, work: Callable[[LocalWire, LocalWire | None, LocalWire], T]) -> list[T]:
    """``[work(world, inner, outer)]``: with the wires inside its node and between nodes of every rank, which share a meter."""
    nodes = [LocalGroup(local) for _ in range(world.world_size // local)]
    places = [LocalGroup(len(nodes)) for _ in range(local)]
    for part in (*nodes, *places):
        part._turn = world._turn

    def wired(wire: LocalWire) -> T:
        node, place = divmod(wire.rank, local)
        inner, outer = LocalWire(nodes[node], place), LocalWire(places[place], node)
        inner.meter = outer.meter = wire.meter
        try:
            return work(wire, inner if local > 1 else None, outer)
        except BaseException as error:
            for part in (*nodes, *places):  # nobody waits there for this rank
                part._failure = error
                for meeting in part._meetings.values():
                    meeting.full.set()
            raise

    return world.run(wired)


@pytest.mark.long
@each_row("compression", ["bf16", "terngrad", "int8", "sign", "topk"])
@each_row(("packed", "dense"), [((4099, 2048), (77,)), ((1024, 2999), ()), ((), (33, 5)), ((65536,), (1,)), ((1025,), (192,))])
@each_row(("local", "members"), [(2, 2), (3, 2), (5, 3), (4, 1), (1, 3)])
def test_nodes_send_what_is_described(
    compression: str, packed: tuple[int, ...], dense: tuple[int, ...], local: int, members: int
) -> None:
    """Every rank's bytes, shares within a node that are padded to equal lengths among them."""
    ranks = local * members
    described = GradientExchange(compression, "hierarchical", ranks_per_node=local)
    flat = make_setup(GradientExchange(compression, "sharded"), LocalWire(LocalGroup(1), 0), Sample())
    assert flat is not None
    offsets = itertools.accumulate((*packed, *dense), initial=0)
    tensors = [TensorSpec(f"t{n}", (count,), at) for n, (count, at) in enumerate(zip((*packed, *dense), offsets, strict=False))]
    layout = Layout(tensors, [tensor.name for tensor in tensors[len(packed) :]], described.description.format.block)

    def sent(wire: LocalWire, inner: LocalWire | None, outer: LocalWire) -> int:
        encoded = inner is None or members > 1
        setup = replace(flat, world=wire, outer=outer, inner=inner, feedback=flat.feedback if encoded else None)
        if setup.feedback is not None:
            setup = replace(setup, feedback=Feedback(setup.feedback.momentum))
        generator = torch.Generator().manual_seed(wire.rank)
        parts = {t.name: 1e-3 * torch.randn(t.elements, generator=generator) for t in tensors}
        expected = {name: part.clone() for name, part in parts.items()}
        gradients = Gradients(layout=layout, parts=parts, workspace=torch.empty(room(setup, layout)), seed=7, step=0)
        wire.meter.begin_step()
        assert not exchange_group(setup, gradients)
        count = wire.meter.sent_bytes
        for name in [tensor.name for tensor in tensors[len(packed) :]]:
            torch.testing.assert_close(parts[name], wire.all_reduce(expected[name]).wait() / ranks, rtol=1e-5, atol=1e-8)
        return count

    plan = BucketPlan(sum(packed), len(packed), sum(dense), padding=layout.compressed - sum(packed))
    phases = describe(plan, described.description, "hierarchical", ranks, local).phases
    assert in_nodes(LocalGroup(ranks), local, sent) == [sum(phase.sent(rank) for phase in phases) for rank in range(ranks)]


BLOCKED: list[tuple[str, dict[str, float]]] = [(c.name, {}) for c in COMPRESSIONS.values() if c.format.block > 1]
BLOCKED += [("topk", {"chunk": 1024, "value_bits": bits, "density": 0.25}) for bits in (2, 16)]
"""Compressions whose elements are coded in blocks, with options."""


@each_row("blocked", BLOCKED)
@each_row("exchange", ["sharded", "ring", "allgather", "hierarchical"])
def test_a_small_tensor_takes_no_noise_from_its_large_neighbour(blocked: tuple[str, dict[str, float]], exchange: str) -> None:
    """A neighbour of 4,096 times its scale adds no error to a tensor. Bytes are those described."""
    (compression, options), sizes, local = blocked, (1500, 1300), 2 if exchange == "hierarchical" else 1
    described = GradientExchange(compression, "sharded" if local > 1 else exchange, options=options)
    tensors = [TensorSpec(name, (size,), at) for name, size, at in zip("ab", sizes, (0, sizes[0]), strict=True)]
    layout = Layout(tensors, (), described.description.format.block)
    plan = plan_bucket(tensors, described.description, set())
    phases = describe(plan, described.description, exchange, 2 * local, local).phases

    def error(scale: float) -> float:
        group = LocalGroup(2 * local)

        def mean(wire: LocalWire, inner: LocalWire | None, outer: LocalWire) -> tuple[torch.Tensor, torch.Tensor]:
            setup = make_setup(described, LocalWire(LocalGroup(1), 0), Sample())
            assert setup is not None
            setup = replace(setup, world=wire, outer=outer, inner=inner)
            generator = torch.Generator().manual_seed(wire.rank)
            parts = {t.name: torch.randn(t.elements, generator=generator) for t in tensors}
            parts["a"] *= scale
            own = parts["b"].clone()
            work = torch.full((room(setup, layout),), torch.nan)
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=7, step=0))
            if not described.description.format.spread:
                assert wire.meter.sent_bytes == sum(phase.sent(wire.rank) for phase in phases)
            return own, parts["b"]

        results = in_nodes(group, local, mean)
        exact = torch.stack([own for own, _ in results]).mean(0)
        assert all(torch.equal(got, results[0][1]) for _, got in results)
        return float((results[0][1] - exact).norm() / exact.norm())

    assert error(4096.0) <= 1.05 * error(1.0)
