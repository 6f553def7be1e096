"""Muon in one process: the steps of torch.optim.Muon and torch.optim.AdamW, groups, states, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline
from muon_ranks import Network, give, network, train
from paceline.errors import UserError

TWO = {"original": {"lr": 0.02, "adamw_lr": 1e-3}, "match_rms_adamw": {"lr": 2e-3, "weight_decay": 0.3}}


def of_torch(model: nn.Module, division: Any, scale: str) -> list[torch.optim.Optimizer]:
    """Torch's own two optimizers for the same tensors."""
    named, options = dict(model.named_parameters()), dict(TWO[scale])
    rate, decay = options.pop("adamw_lr", options["lr"]), options.get("weight_decay", 0.1)
    return [
        torch.optim.Muon([named[name] for name in division.matrices], adjust_lr_fn=scale, **options),
        torch.optim.AdamW([named[name] for name in division.rest], lr=rate, betas=(0.9, 0.95), weight_decay=decay),
    ]


def equal(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("scale", TWO)
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_steps_of_torch(scale: str, nesterov: bool) -> None:
    """The same bits, with products in bf16. Experts, which torch refuses, are AdamW's here."""
    mine, other = network(), network()
    ours = paceline.Muon(mine, adjust_lr_fn=scale, nesterov=nesterov, rule=["*.experts"], **TWO[scale])
    theirs = of_torch(other, ours.division, scale)
    theirs[0].param_groups[0]["nesterov"] = nesterov
    for step in range(4):
        give(mine, step)
        give(other, step)
        for optimizer in (ours, *theirs):
            optimizer.step()
    assert equal(mine, other)


def test_it_learns_in_either_precision() -> None:
    """Products in fp32 and bf16 take almost the same way."""
    torch.manual_seed(1)
    x = torch.randn(64, 5)
    y = torch.stack([x[:, 0] * x[:, 1], x.sum(1).sin(), x[:, 2]], 1)
    losses = []
    for precision in ("bf16", "fp32"):
        model = network()
        optimizer = paceline.Muon(model, lr=0.02, weight_decay=0.0, precision=precision)

        def loss(model: Network = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = (model(x) - y).square().mean()
            value.backward()
            return value

        losses.append([float(optimizer.step(loss)) for _ in range(30)])
    assert losses[0][-1] < 0.3 * losses[0][0] and losses[1][-1] == pytest.approx(losses[0][-1], rel=0.2)


def test_a_bad_gradient_changes_nothing() -> None:
    model, other = network(), network()
    optimizer, without = paceline.Muon(model), paceline.Muon(other)
    for each, chosen in ((model, optimizer), (other, without)):
        train(each, chosen, 0, 2)
    give(model, 9)
    grad = next(model.parameters()).grad
    assert grad is not None
    grad[0, 0] = float("inf")
    optimizer.step()
    train(model, optimizer, 2, 4)
    train(other, without, 2, 4)
    assert optimizer.skipped_steps == 1 and without.skipped_steps == 0 and equal(model, other)


def test_a_state_goes_on() -> None:
    """Through a file, a copy and a pickle, into an optimizer of other rates; masters of 16-bit weights too."""
    for dtype in (torch.float32, torch.bfloat16):
        model = network().to(dtype)
        optimizer = paceline.Muon(model, lr=0.01)
        train(model, optimizer, 0, 2)
        file, other = io.BytesIO(), copy.deepcopy(model)
        torch.save(optimizer.state_dict(), file)
        resumed = paceline.Muon(other.named_parameters(), lr=0.5)
        resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        third, pickled = pickle.loads(pickle.dumps((model, optimizer)))
        train(model, optimizer, 2, 4)
        train(other, resumed, 2, 4)
        train(third, pickled, 2, 4)
        assert equal(model, other) and equal(model, third)
        assert all(
            value.dtype == torch.float32 for state in resumed.state.values() for name, value in state.items() if name != "step"
        )


def test_groups_have_rates_of_their_own() -> None:
    """Both parts of a group; a parameter without a gradient stays; a group that joins is divided by the rule."""
    model = network()
    first = [entry for entry in model.named_parameters() if not entry[0].startswith("blocks.1")]
    second = [entry for entry in model.named_parameters() if entry[0].startswith("blocks.1")]
    optimizer = paceline.Muon([{"params": first, "lr": 0.0, "adamw_lr": 0.0, "weight_decay": 0.0}], lr=0.01)
    optimizer.add_param_group({"params": second})
    assert [group["algorithm"] for group in optimizer.param_groups] == ["muon", "adamw", "muon", "adamw"]
    before = [p.detach().clone() for p in model.parameters()]
    give(model, 0)
    model.blocks[1].up.weight.grad = None
    optimizer.step()
    for (name, p), old in zip(model.named_parameters(), before, strict=True):
        assert torch.equal(p, old) == (not name.startswith("blocks.1") or name == "blocks.1.up.weight"), name
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert {group["lr"] for group in optimizer.param_groups[2:]} == {0.005} and scheduler


def test_plain_parameters_need_an_algorithm() -> None:
    model = network()
    stated = paceline.Muon(
        [{"params": [model.inputs.weight], "algorithm": "muon"}, {"params": [model.output.bias], "algorithm": "adamw"}]
    )
    assert list(stated.division.matrices) == ["0.0"] and stated.division.rest == {"1.0": "by its group"}


NAMED = [("a.0.weight", nn.Parameter(torch.ones(4, 6))), ("a.0.bias", nn.Parameter(torch.ones(4)))]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"params": [p for _, p in NAMED]}, "have none; pass the model"),
    ({"params": []}, "no parameters"),
    ({"params": NAMED[0][1]}, "Parameter for parameters"),
    ({"params": [{"params": [NAMED[1][1]], "algorithm": "muon"}]}, "fewer than two dimensions"),
    ({"params": [{"params": NAMED, "rate": 1}]}, "'rate', which is no option"),
    ({"params": [{"params": NAMED, "algorithm": "sgd"}]}, "algorithm"),
    ({"params": [("x", torch.ones(2, 2, dtype=torch.complex64))]}, "x is complex64"),
    ({"params": [{"params": [torch.ones(2, 2)]}], "rule": "hidden"}, "have none; give the group an algorithm"),
    ({"adjust_lr_fn": "original"}, "adamw_lr has no default"),
    ({"adjust_lr_fn": "orginal"}, "did you mean 'original'|original"),
    ({"precision": "fp8"}, "precision"),
    ({"lr": -1.0}, "lr=-1.0"),
    ({"momentum": 1.0}, "momentum=1.0"),
    ({"ns_steps": 0}, "ns_steps=0"),
    ({"ns_coefficients": (1.0,)}, "three numbers"),
    ({"adamw_betas": (0.9,)}, "two numbers"),
    ({"nesterov": 1}, "nesterov=1"),
    ({"rule": ["head.*"]}, "matches no parameter"),
    ({"rule": "hiden"}, "hidden"),
    ({"split": {"a.0.weight": 3}}, "4 rows"),
    ({"split": {"a.0.weight": (1, 2)}}, "with that sum"),
    ({"ranks": "all"}, "world"),
    ({"bucket_elements": 0}, "bucket_elements=0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        paceline.Muon(**{"params": NAMED, "rule": "vectors" if "params" not in options else "hidden", **options})


def test_a_foreign_state_is_refused() -> None:
    """And nothing is loaded."""
    model = network()
    optimizer, all_matrices = paceline.Muon(model), paceline.Muon(model, rule="vectors")
    train(model, optimizer, 0, 1)
    state = optimizer.state_dict()
    adam = torch.optim.AdamW([{"params": group["params"]} for group in optimizer.param_groups])
    for saved, message in (
        ({}, "no state and param_groups"),
        (all_matrices.state_dict(), "parameter groups of"),
        (adam.state_dict(), "another optimizer"),
        ({**state, "state": {0: {"momentum_buffer": torch.ones(3)}}}, "momentum_buffer of .* is 3"),
        ({**state, "state": {0: {"exp_avg": torch.ones(3)}}}, "no momentum_buffer"),
    ):
        with pytest.raises(UserError, match=message):
            optimizer.load_state_dict(saved)
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].equal(state["state"][0]["momentum_buffer"])
