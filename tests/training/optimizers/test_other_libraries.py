"""The plain contenders are LARS and LAMB, and a library that is absent says why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import paceline
from paceline.training.optimizers import other_libraries


@pytest.mark.parametrize("kind", ["LARS", "LAMB"])
def test_the_plain_foreach_contender_is_the_same_optimizer(kind: str) -> None:
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((5, 3), (3, 4, 2))]
    plain, other = ([nn.Parameter(w.clone()) for w in start] for _ in range(2))
    if kind == "LARS":
        step = other_libraries.foreach_lars(plain)
        ours = paceline.LARS(other, other_libraries.RATE, other_libraries.MOMENTUM, other_libraries.LARS_DECAY)
    else:
        step = other_libraries.foreach_lamb(plain)
        ours = paceline.LAMB(other, other_libraries.RATE, weight_decay=other_libraries.LAMB_DECAY)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for a, b in zip(plain, other, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        step()
        ours.step()
    for a, b, w in zip(plain, other, start, strict=True):
        torch.testing.assert_close(a.detach() - w, b.detach() - w, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", other_libraries.PEERS)
def test_a_library_that_cannot_be_imported_says_why(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> None:
        if module.startswith("timm"):
            raise RuntimeError("operator\n  does not exist")
        raise ModuleNotFoundError(f"no {module}", name=module)

    monkeypatch.setattr(other_libraries.importlib, "import_module", broken)
    weight = nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.ones(3, 2)
    steps, absent = other_libraries.peers(kind, [weight])
    assert list(steps) == ["plain foreach"] and set(absent) == set(other_libraries.PEERS[kind])
    assert absent["timm"] == "cannot be imported: operator does not exist"
    assert absent["torch_optimizer"] == "torch_optimizer is not installed"
    steps["plain foreach"]()
    assert (weight < 1).all()


@pytest.mark.parametrize("kind", other_libraries.PEERS)
def test_every_peer_that_is_here_updates_the_parameters(kind: str) -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.ones(3, 2)
    steps, absent = other_libraries.peers(kind, [weight])
    assert set(steps) - {"plain foreach"} | set(absent) == set(other_libraries.PEERS[kind])
    for step in steps.values():
        before = weight.detach().clone()
        step()
        assert (weight != before).any() and torch.isfinite(weight).all()
