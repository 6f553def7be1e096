"""Recipes of local steps on several processes: the weights of their papers' algorithms, and the bytes as described."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import local_oracle as oracle
import paceline
from distributed import launch_once
from paceline.strategy import LOCAL_RECIPES, Strategy
from paceline.training.exchanges.gradients.tensor_layout import numbered

WORKERS = 2
STEPS = {"sparseloco": 9, "muloco": 9, "muloco, its optimizer": 3, "diloco": 9}
"""Steps of each case. Muon multiplies in bf16, so a last bit of the first exchange moves its later steps by 0.1 %."""
RECIPES: dict[str, dict[str, Any]] = {
    "sparseloco": {"lr": 1.0, "momentum": 0.0, "decay": 0.95, "encoded": oracle.in_two_bits(64, 4096), "inner": "adamw"},
    "muloco": {"lr": 0.7, "momentum": 0.9, "encoded": oracle.in_two_bits(1024, 1024), "inner": "sgd"},
    "diloco": {"inner": "adamw"},
}
RECIPES["muloco, its optimizer"] = {**RECIPES["muloco"], "inner": "muon"}


def train(rank: int, workers: int) -> dict[str, Any]:
    found = {}
    for name, recipe in RECIPES.items():
        model = oracle.network(rank)
        optimizer = oracle.optimizer(recipe["inner"], model)
        sync = paceline.attach_local(model, name.partition(",")[0], sync_every=3)
        for x in oracle.samples(rank, STEPS[name]):
            oracle.local_step(model, optimizer, x)
            sync.step()
        found[name] = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy(), sync.meter.sent_bytes
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_the_weights_are_those_of_the_papers_algorithm(name: str) -> None:
    assert RECIPES.keys() >= LOCAL_RECIPES.keys()
    expected = oracle.simulated(WORKERS, STEPS[name], every=3, **RECIPES[name])
    for rank, found in enumerate(launch_once(train, WORKERS)):
        weights = np.concatenate([w.reshape(-1) for w in expected[rank]])
        np.testing.assert_allclose(found[name][0], weights, rtol=1e-4, atol=1e-5)


class Blocks(nn.Module):
    """Two blocks of a transformer's matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def send(rank: int, workers: int) -> dict[str, int]:
    """Bytes of an exchange."""
    sent = {}
    for name in LOCAL_RECIPES:
        model = Blocks()
        sync = paceline.attach_local(model, name, sync_every=1)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        sync.step()
        sent[name] = sync.meter.sent_bytes
    return sent


@pytest.mark.long
def test_bytes_are_as_described_and_those_of_sparseloco_170_times_fewer_than_dense() -> None:
    specs: list[Any] = list(numbered(Blocks().named_parameters()).values())
    ranks = launch_once(send, WORKERS)
    for name, recipe in LOCAL_RECIPES.items():
        strategy = Strategy.of(world_size=WORKERS, global_batch_size=WORKERS, **{**recipe.choices, "sync_every": 2})
        ((_, phases),) = strategy.exchange_phases(specs, specs)
        assert all(sent[name] == sum(phase.sent(rank) for phase in phases) for rank, sent in enumerate(ranks))
    dense = 4 * sum(t.elements for t in specs)
    matrices = 4 * sum(t.elements for t in specs if len(t.shape) == 2)
    biases = dense - matrices  # too small for a chunk
    assert matrices / (ranks[0]["sparseloco"] - biases) > 170
    assert 10 < matrices / (ranks[0]["muloco"] - biases) < 11  # 3 bits of 32
