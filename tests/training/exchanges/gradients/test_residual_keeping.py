"""Residuals in bfloat16: what was sent and what is left add up to the gradients within a bound, and training converges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.codecs import key
from paceline.strategy import DenseRule, GradientExchange
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.residual_keeping import AS_THEY_ARE, Keeping, WorkingCopies, keeping_of
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ALL_PACKED = DenseRule(min_elements=0, last_layer=False)
CASES = [
    ("sign", "sharded", {}),
    ("topk", "allgather", {"density": 0.05}),
    ("topk", "ring", {"density": 0.05, "momentum": 0.5}),
    ("inceptionn-scaled", "ring", {}),
]


def described(case: tuple[str, str, dict[str, float]], bits: int) -> GradientExchange:
    name, exchange, options = case
    return GradientExchange(name, exchange, options, dense_rule=ALL_PACKED, residual_bits=bits)


def steps(x: GradientExchange, workers: int, count: int, gradient: Any, elements: int) -> list[dict[str, Any]]:
    """Of each rank: the sum of its gradients and of the means, and what it owes after each step."""
    tensors = [TensorSpec("a", (elements // 2,), 0), TensorSpec("b", (elements - elements // 2,), elements // 2)]

    def rank(wire: Any) -> dict[str, Any]:
        setup = make_setup(x, wire, Sample())
        assert setup is not None and setup.feedback is not None
        layout = Layout(tensors, ())
        work = torch.empty(room(setup, layout))
        found: dict[str, Any] = {"given": torch.zeros(elements).double(), "mean": torch.zeros(elements).double(), "owed": []}
        for step in range(count):
            whole = gradient(wire.rank, step)
            found["given"] += whole.double()
            parts = {"a": whole[: elements // 2].clone(), "b": whole[elements // 2 :].clone()}
            setup.feedback.holds_back = step % 2 == 0
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=5, step=step))
            setup.feedback.end_step(True)
            found["mean"] += torch.cat([parts["a"], parts["b"]]).double()
            kept = setup.feedback.state()
            found["owed"].append(torch.cat([kept["residual"]["a"], kept["residual"]["b"]]))
        found["kept"] = kept
        return found

    return LocalGroup(workers).run(rank)


def random(elements: int) -> Any:
    return lambda rank, step: torch.randn(elements, generator=torch.Generator().manual_seed(100 * step + rank))


@pytest.mark.long
@given(st.sampled_from([CASES[0], CASES[1], CASES[3]]), st.integers(2, 4), st.sampled_from([2, 65, 700]))
@settings(deadline=None, max_examples=15)
def test_sent_and_owed_are_what_was_given_but_for_the_rounding(case: Any, workers: int, elements: int) -> None:
    """Each step rounds each rank's residual by less than one unit of its last place: 2^-7 of it. Nothing else is lost."""
    ranks = steps(described(case, 16), workers, 6, random(elements), elements)
    given_ = sum(r["given"] for r in ranks)
    accounted = workers * ranks[0]["mean"] + sum(r["owed"][-1].double() for r in ranks)
    bound = 2.0**-7 * sum(owed.double().abs() for r in ranks for owed in r["owed"]) * 1.01 + 1e-4
    assert ((given_ - accounted).abs() <= bound).all()
    assert all(owed.dtype == torch.bfloat16 for r in ranks for owed in r["owed"])
    exact = steps(described(case, 32), workers, 6, random(elements), elements)
    lost = given_ - workers * exact[0]["mean"] - sum(r["owed"][-1].double() for r in exact)
    assert lost.abs().max() < 1e-4 and exact[0]["owed"][0].dtype == torch.float32


def test_the_momentum_is_kept_alike() -> None:
    (found, _) = steps(described(CASES[2], 16), 2, 3, random(300), 300)
    assert {v.dtype for kind in found["kept"].values() for v in kind.values()} == {torch.bfloat16}
    assert all(float(v.abs().max()) > 0 for v in found["kept"]["velocity"].values())


def test_gradients_below_a_unit_of_their_residual_add_up() -> None:
    """Residuals of 1 and gradients of 0.002, a quarter of the last place of 1: rounded to nearest they would stay 1."""
    gradient = torch.cat([torch.full((50,), 5.0), torch.full((50,), 0.002)])
    tensors = [TensorSpec("a", (100,), 0)]

    def rank(wire: Any) -> torch.Tensor:
        setup = make_setup(described(("topk", "allgather", {"density": 0.01}), 16), wire, Sample())
        assert setup is not None and setup.feedback is not None
        setup.feedback.load({"residual": {"a": torch.ones(100)}, "velocity": {}})
        layout, work = Layout(tensors, ()), torch.empty(100)
        for step in range(100):
            parts = {"a": gradient.clone()}
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=5, step=step))
        return setup.feedback.state()["residual"]["a"][50:].float()

    for owed in LocalGroup(2).run(rank):
        assert abs(float(owed.mean()) - 1.2) < 0.03


def distance_from_optimum(x: GradientExchange, elements: int = 200) -> float:
    """Of least squares on two workers after 300 steps, over that at the start."""
    target = torch.randn(elements, generator=torch.Generator().manual_seed(1))

    def rank(wire: Any) -> torch.Tensor:
        setup = make_setup(x, wire, Sample())
        assert setup is not None
        layout, w = Layout([TensorSpec("w", (elements,), 0)], ()), torch.zeros(elements)
        work = torch.empty(room(setup, layout))
        for step in range(300):
            draws = torch.Generator().manual_seed(10 * step + wire.rank)
            gradient = w - target + 0.1 * torch.randn(elements, generator=draws)
            exchange_group(setup, Gradients(layout=layout, parts={"w": gradient}, workspace=work, seed=5, step=step))
            w = w - 0.03 * gradient
        return w

    return float((LocalGroup(2).run(rank)[0] - target).norm() / target.norm())


@pytest.mark.long
@pytest.mark.everyday("sign-options1")
@pytest.mark.parametrize(("name", "options"), [("topk", {"density": 0.05}), ("sign", {})])
def test_training_converges_as_with_fp32(name: str, options: dict[str, float]) -> None:
    narrow, full = (distance_from_optimum(described((name, "sharded", options), bits)) for bits in (16, 32))
    assert full < 0.1 and narrow < 1.2 * full


def test_a_step_that_fails_or_is_dropped_leaves_what_was_kept() -> None:
    """An exchange that ends in an error has not touched what is kept, since it worked on a copy."""
    tensors = [TensorSpec("a", (100,), 0)]

    def rank(wire: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        setup = make_setup(described(CASES[0], 16), wire, Sample())
        assert setup is not None and setup.feedback is not None
        layout, work = Layout(tensors, ()), torch.empty(100)

        def step(number: int, setup: Any = setup) -> torch.Tensor:
            parts = {"a": random(100)(wire.rank, number)}
            exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=5, step=number))
            return setup.feedback.state()["residual"]["a"]

        kept = step(0)
        with pytest.raises(AttributeError):
            step(1, replace(setup, exchange="no exchange"))
        failed = setup.feedback.state()["residual"]["a"]
        setup.feedback.holds_back = True
        step(2)
        setup.feedback.end_step(False)
        return kept, failed, setup.feedback.state()["residual"]["a"]

    for kept, failed, dropped in LocalGroup(2).run(rank):
        assert torch.equal(kept, failed) and torch.equal(kept, dropped) and bool(kept.any())


def test_where_the_codec_works_and_where_it_works_on_a_copy() -> None:
    assert AS_THEY_ARE.in_place(CPU) and AS_THEY_ARE.in_place(GPU)
    assert Keeping(on_host=True).in_place(CPU) and not Keeping(on_host=True).in_place(GPU)
    assert not Keeping(narrow=True).in_place(CPU) and not Keeping(narrow=True).in_place(GPU)
    x = GradientExchange("sign", residual_bits=16, residuals_at="host")
    assert keeping_of(x) == Keeping(narrow=True, on_host=True) and keeping_of(GradientExchange("sign")) == AS_THEY_ARE
    assert Keeping(narrow=True).zeros((2, 3), CPU).dtype == torch.bfloat16


def test_a_copy_has_the_values_and_the_memory_of_the_one_before() -> None:
    copies, kept = WorkingCopies(), torch.arange(6.0).bfloat16().view(2, 3)
    first = copies.of("residual", kept, CPU)
    assert first.dtype == torch.float32 and torch.equal(first, kept.float())
    assert copies.of("residual", kept[:1], CPU).data_ptr() == first.data_ptr()
    assert copies.of("velocity", kept, CPU).data_ptr() != first.data_ptr()


@pytest.mark.parametrize("narrow", [False, True])
def test_what_is_put_is_what_is_kept(narrow: bool) -> None:
    keeping = Keeping(narrow=narrow)
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    kept = keeping.zeros((5, 7), CPU)
    keeping.put(values.clone(), kept, key(1, 2), 0)
    assert ((kept.float() - values).abs() <= (2.0**-7 if narrow else 0) * values.abs()).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("narrow", [False, True])
def test_on_a_gpu_the_host_keeps_pinned_memory(narrow: bool) -> None:
    keeping, copies = Keeping(narrow=narrow, on_host=True), WorkingCopies()
    kept = keeping.zeros(1000, GPU)
    assert kept.device.type == "cpu" and kept.is_pinned()
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    keeping.put(values.cuda(), kept, key(1, 2), 0)
    on_cpu = Keeping(narrow=narrow).zeros(1000, CPU)
    Keeping(narrow=narrow).put(values.clone(), on_cpu, key(1, 2), 0)
    assert torch.equal(kept, on_cpu) and torch.equal(copies.of("residual", kept, GPU).cpu(), kept.float())
