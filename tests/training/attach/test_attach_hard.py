"""Scripts that stock DDP runs and that a hook could break."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.codecs import moments_of
from paceline.codecs.reference import ternary
from paceline.errors import UserError
from paceline.strategy import DenseRule
from paceline.training.attach.attach import attach


def two_models_and_a_gather(rank: int, workers: int) -> dict[str, Any]:
    """Two attached models in one backward pass, then collectives of the script's own in every forward pass."""
    torch.manual_seed(0)
    models = [DDP(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 8))) for _ in range(2)]
    hooks = [attach(model, "terngrad") for model in models]
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(rank))
    for _ in range(12):
        outputs = [model(x) for model in models]
        everyone = [torch.zeros_like(outputs[0]) for _ in range(workers)]
        dist.all_gather(everyone, outputs[0].detach())
        (outputs[0].square().mean() + outputs[1].square().mean() + 0 * torch.stack(everyone).sum()).backward()
        dist.all_reduce(torch.ones(3))
    return {"steps": [hook.step for hook in hooks], "grad": models[0].module[0].weight.grad}


def refusals(rank: int, workers: int) -> list[str]:
    """What attach says to a second hook and to sparse gradients."""
    model = DDP(nn.Linear(64, 32))
    attach(model, "dense")
    said = []
    for target in (model, DDP(nn.EmbeddingBag(30, 8, sparse=True))):
        try:
            attach(target, "terngrad")
        except UserError as error:
            said.append(str(error))
    return said


def test_two_models_and_collectives_of_the_script_do_not_meet_the_exchange() -> None:
    results = launch_once(two_models_and_a_gather, 2)
    assert all(result["steps"] == [12, 12] for result in results)
    assert np.array_equal(np.asarray(results[0]["grad"]), np.asarray(results[1]["grad"]))


def test_a_second_hook_and_sparse_gradients_are_refused() -> None:
    for said in launch_once(refusals, 1):
        assert "already" in said[0] and "sparse" in said[1]


ILLEGAL: dict[str, tuple[dict[str, Any], str]] = {
    "clip 0": ({"clip": 0}, "clip=0; give standard deviations"),
    "clip -1": ({"clip": -1}, "clip=-1; give"),
    "clip nan": ({"clip": float("nan")}, "clip=nan; give"),
    "clip inf": ({"clip": float("inf")}, "clip=inf; give"),
    "clip text": ({"clip": "2"}, "clip='2'; give"),
    "min_elements": ({"min_elements": -1}, "min_elements=-1; give a whole number from 0 on"),
    "check_every": ({"check_every": -1}, "check_every=-1; give a whole number"),
    "seed": ({"seed": 1.5}, "seed=1.5; give a whole number"),
    "timeout_s": ({"timeout_s": -1}, "timeout_s=-1; give seconds"),
    "timeout_s nan": ({"timeout_s": float("nan")}, "timeout_s=nan; give seconds"),
    "ranks_per_node": ({"ranks_per_node": 0}, "ranks_per_node=0; give a whole number from 1 on"),
    "powersgd": ({"compression": "powersgd", "dense": ["a"]}, "powersgd treats all tensors the same; leave dense, min_el"),
    "dense": ({"compression": "dense", "min_elements": 5}, "dense treats all tensors the same"),
    "bf16": ({"compression": "bf16", "dense": ["a"]}, "bf16 treats all tensors the same"),
    "one pattern": ({"dense": "a.*"}, "dense='a.*'; give a list of patterns"),
    "clip of int8": ({"compression": "int8", "clip": 1.0}, "int8 does not clip; leave clip out"),
}


class Complex(nn.Module):
    """A layer with one complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.phase = nn.Linear(8, 8), nn.Parameter(torch.ones(8, dtype=torch.complex64))


def illegal(rank: int, workers: int) -> dict[str, str]:
    """What attach says to each value, and to complex parameters."""

    def said(model: nn.Module, **options: Any) -> str:
        try:
            attach(DDP(model), **options)
        except UserError as error:
            return str(error)
        return "no error"

    found = {case: said(nn.Linear(8, 8), **options) for case, (options, _) in ILLEGAL.items()}
    for compression in ("dense", "int8", "powersgd", "auto"):
        found[f"complex {compression}"] = said(Complex(), compression=compression)
    return found


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_values_are_refused_with_what_is_legal(case: str) -> None:
    (found,) = launch_once(illegal, 1)
    assert found[case].startswith(ILLEGAL[case][1])


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd", "auto"])
def test_complex_parameters_are_refused(compression: str) -> None:
    (found,) = launch_once(illegal, 1)
    assert found[f"complex {compression}"].startswith("phase: complex gradients cannot be exchanged")


def large_and_unfit(rank: int, workers: int) -> dict[str, Any]:
    """Gradients whose sum overflows, and a NaN in one element of one rank's; and what a copied model has."""
    seen: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {
        "int8": {"compression": "int8"},
        "scaled, ring": {"compression": "inceptionn-scaled", "exchange": "ring"},
        "sign, nodes": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 2},
        "ternary, nodes": {"compression": "terngrad", "exchange": "hierarchical", "ranks_per_node": 2},
        "one node": {"compression": "sign", "exchange": "hierarchical", "ranks_per_node": 4},
    }
    for name, options in ways.items():
        model = DDP(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2, bias=False)))
        hook = attach(model, **options)
        weight, steps = model.module[0].weight, []
        for step, value in enumerate([1.0, 2.0**119, float("nan"), 1.0]):

            def spoil(g: torch.Tensor, value: float = value, step: int = step) -> torch.Tensor:
                return torch.full_like(g, value) if step == 1 else torch.where(torch.arange(4096).view(64, 64) == 7, value, g)

            handle = weight.register_hook(spoil) if step == 1 or (step == 2 and rank == 3) else None
            model.zero_grad()
            model(torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
            if handle is not None:
                handle.remove()
            residual = {k: v.numpy().copy() for k, v in hook.state_dict()["feedback"]["residual"].items()}
            steps.append((hook.meter.nonfinite_steps, weight.grad.numpy().copy(), residual))
        seen[name] = steps
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model.module, file)
    seen["copied"] = [torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)]
    seen["reduced"] = pickle.loads(pickle.dumps([hook])) == [None]
    return seen


@pytest.mark.long
def test_what_no_codec_can_carry_goes_dense_on_every_rank_alike() -> None:
    ranks = launch_once(large_and_unfit, 4)
    for r in ranks:
        assert all(r["copied"]) and r["reduced"]
        for name in ("int8", "scaled, ring", "sign, nodes", "ternary, nodes", "one node"):
            counts = [count for count, _, _ in r[name]]
            assert counts == ([0, 0, 1, 1] if name == "one node" else [0, 1, 2, 2]), (name, counts)
            assert np.allclose(r[name][1][1], 2.0**119) and np.isnan(r[name][2][1]).sum() == 1
            before, after = r[name][0][2], r[name][2][2]
            assert before.keys() == after.keys() and all(np.array_equal(before[k], after[k]) for k in before)
            for (_, grad, _), (_, other, _) in zip(r[name], ranks[0][name], strict=True):
                assert np.array_equal(grad, other, equal_nan=True)


def test_a_constant_tensor_is_not_clipped_away() -> None:
    x = np.full(100, 0.5, np.float32)
    assert ternary.clip_bound(moments_of(x), 2.5) == np.float32(0.5)


def test_tensors_of_the_model_itself_are_not_all_the_last_layer() -> None:
    class T:
        def __init__(self, name: str, *shape: int) -> None:
            self.name, self.shape = name, shape

    rule = DenseRule(min_elements=10)
    assert rule.dense([T("w1", 50, 50), T("w2", 50, 50), T("w3", 50, 10)]) == {"w3": "last layer"}


@pytest.mark.parametrize("options", [{"clip": -1.0}, {"scale": float("nan")}, {"scale": float("inf")}])
def test_a_codec_that_could_only_write_bad_payloads_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="from 0 up"):
        ternary.Ternary(**options)


@pytest.mark.parametrize("workers", [0, 40_000])
def test_a_sum_that_has_no_payload_is_refused(workers: int) -> None:
    with pytest.raises(UserError, match="1 to 32767"):
        ternary.TernarySum(workers=workers)
