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
    with pytest.raises(UserError, match="finite number"):
        ternary.Ternary(**options)


@pytest.mark.parametrize("workers", [0, 40_000])
def test_a_sum_that_has_no_payload_is_refused(workers: int) -> None:
    with pytest.raises(UserError, match="1 to 32767"):
        ternary.TernarySum(workers=workers)
