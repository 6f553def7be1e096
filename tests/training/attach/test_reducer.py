"""Parameters that DDP's reducer does not exchange: served or refused by name, and never waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.errors import UserError
from paceline.training.attach.attach import attach

STEPS = 3


def layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 4))


def delayed() -> DDP:
    """DDP exchanges the first layer's weight apart from its reducer."""
    module = layers()
    return DDP(module, delay_all_reduce_named_params=[("0.weight", module[0].weight)], param_to_hook_all_reduce=module[0].bias)


def all_delayed() -> DDP:
    """DDP exchanges every trained parameter apart and makes no reducer."""
    module = layers()
    named = list(module.named_parameters())
    module.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    return DDP(module, delay_all_reduce_named_params=named, param_to_hook_all_reduce=module[0].weight)


def ignored() -> DDP:
    """The script keeps one weight of each rank for itself."""
    module = layers()
    DDP._set_params_and_buffers_to_ignore_for_model(module, ["2.weight"])
    return DDP(module)


def unfrozen() -> DDP:
    """A weight that DDP found frozen is trained from now on."""
    module = layers()
    module[2].weight.requires_grad_(False)
    model = DDP(module)
    module[2].weight.requires_grad_(True)
    return model


def frozen(**options: Any) -> DDP:
    """A weight that DDP found trained is frozen from now on."""
    module = layers()
    model = DDP(module, **options)
    module[2].weight.requires_grad_(False)
    return model


MODELS = {
    "delayed": delayed,
    "all delayed": all_delayed,
    "ignored": ignored,
    "unfrozen": unfrozen,
    "frozen": frozen,
    "frozen and unused": lambda: frozen(find_unused_parameters=True),
}


def gradients(model: nn.Module, rank: int) -> dict[str, np.ndarray]:
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(rank))
    model.zero_grad()
    model(x).square().mean().backward()
    module = getattr(model, "module", model)
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}


def trained_later(compression: str, change: str) -> str:
    """Return the error of the second backward pass, after a layer was thawed or added since ``attach``."""
    module = layers()
    module[2].weight.requires_grad_(False)
    model = DDP(module, find_unused_parameters=change == "added")
    attach(model, compression)
    gradients(model, 0)
    if change == "added":
        module.insert(0, nn.Linear(40, 40, bias=False))
    else:
        module[2].weight.requires_grad_(True)
    try:
        gradients(model, 0)
    except UserError as error:
        return str(error)
    return ""


def owned(rank: int, workers: int, cases: str) -> dict[str, Any]:
    """Three steps of each model; what attach says, and the gradients of the last step."""
    seen: dict[str, Any] = {"alone": [gradients(layers(), r) for r in range(workers)]}
    for case in cases.split(","):
        for compression in ("dense", "int8", "powersgd"):
            model = MODELS[case]()
            try:
                hook = attach(model, compression, check_every=1)
            except UserError as error:
                seen[case, compression] = str(error)
                continue
            for _ in range(STEPS):
                result = gradients(model, rank)
                with torch.no_grad():
                    model.module[2].weight += 0.01 * rank * (case == "ignored")  # the script's own training of it
                    model.module[2].weight -= 0.01 * rank * (case == "ignored" and hook.step == STEPS - 1)
            seen[case, compression] = result, hook.step, [t.name for t in hook.tensors]
    for compression in ("dense", "int8", "powersgd"):
        seen["thawed", compression] = trained_later(compression, "thawed")
    seen["added", "int8"] = trained_later("int8", "added")
    return seen


def ranks() -> list[dict[str, Any]]:
    return launch_once(owned, 2, cases=",".join(MODELS))


def mean(seen: dict[str, Any], name: str) -> np.ndarray:
    return np.mean([alone[name] for alone in seen["alone"]], axis=0)


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
@pytest.mark.parametrize(("case", "left_out"), [("delayed", "0.weight"), ("ignored", "2.weight")])
def test_the_others_are_exchanged_and_what_ddp_leaves_out_is_left_alone(case: str, left_out: str, compression: str) -> None:
    for rank, seen in enumerate(ranks()):
        result, steps, tensors = seen[case, compression]
        assert steps == STEPS and left_out not in tensors
        assert {*tensors, left_out} == set(seen["alone"][0])
        if case == "delayed":
            assert left_out in result  # DDP's own exchange of it waits for nothing, so its values depend on the moment
            np.testing.assert_allclose(result["4.weight"], mean(seen, "4.weight"), rtol=1e-5, atol=1e-7)
        assert np.array_equal(result["4.bias"], ranks()[1 - rank][case, compression][0]["4.bias"])


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
def test_a_weight_that_was_unfrozen_after_ddp_is_refused_by_name(compression: str) -> None:
    for seen in ranks():
        assert "2.weight: frozen when DistributedDataParallel" in seen["unfrozen", compression]


@pytest.mark.parametrize("compression", ["dense", "int8", "powersgd"])
def test_a_weight_that_was_frozen_after_ddp_is_refused_by_name_unless_ddp_looks_for_unused_ones(compression: str) -> None:
    for seen in ranks():
        assert "2.weight: trained when DistributedDataParallel" in seen["frozen", compression]
        assert "find_unused_parameters=True" in seen["frozen", compression]
        result, steps, tensors = seen["frozen and unused", compression]
        assert steps == STEPS and "2.weight" in tensors and "2.weight" not in result
        np.testing.assert_allclose(result["4.weight"], mean(seen, "4.weight"), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "name", "compression"),
    [*(("thawed", "2.weight", c) for c in ("dense", "int8", "powersgd")), ("added", "0.weight", "int8")],
)
def test_a_layer_that_is_trained_only_after_attach_is_refused_before_replicas_diverge(
    change: str, name: str, compression: str
) -> None:
    for seen in ranks():
        assert f"{name}: frozen or not there when DistributedDataParallel" in seen[change, compression]


def test_a_model_that_ddp_exchanges_without_a_reducer_is_refused() -> None:
    for seen in ranks():
        assert "leave parameters out of delay_all_reduce_named_params" in seen["all delayed", "int8"]
