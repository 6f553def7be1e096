"""Scripts that stock DDP runs and that a hook could break."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.codecs import ternary
from paceline.errors import UserError
from paceline.strategy import DenseRule
from paceline.training.attach import attach


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
    results = launch_once(two_models_and_a_gather, 2, timeout=100)
    assert all(result["steps"] == [12, 12] for result in results)
    assert np.array_equal(np.asarray(results[0]["grad"]), np.asarray(results[1]["grad"]))


def test_a_second_hook_and_sparse_gradients_are_refused() -> None:
    for said in launch_once(refusals, 1, timeout=60):
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
    "powersgd": ({"compression": "powersgd", "dense": ["a"]}, "powersgd treats all tensors alike; leave dense and min_el"),
    "dense": ({"compression": "dense", "min_elements": 5}, "dense treats all tensors alike"),
    "bf16": ({"compression": "bf16", "dense": ["a"]}, "bf16 treats all tensors alike"),
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
    (found,) = launch_once(illegal, 1, timeout=60)
    assert found[case].startswith(ILLEGAL[case][1])


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd", "auto"])
def test_complex_parameters_are_refused(compression: str) -> None:
    (found,) = launch_once(illegal, 1, timeout=60)
    assert found[f"complex {compression}"].startswith("phase: complex gradients cannot be exchanged")


def test_a_constant_tensor_is_not_clipped_away() -> None:
    x = np.full(100, 0.5, np.float32)
    assert ternary.clip_bound(ternary.moments(x), 2.5) == np.float32(0.5)


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
