"""Recomputation of blocks: the same bits as without, fewer saved bytes, and modules that have no such part."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UserError
from paceline.strategy.recompute import Recompute
from paceline.training.runs.compute.recomputation import recompute_blocks

WIDTH, HEADS, TOKENS = 32, 2, 24


class Block(nn.Module):
    """Block of a transformer with attention of separate products, dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.queries, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * WIDTH, WIDTH))
        self.batch_norm = nn.BatchNorm1d(TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.queries(self.norm(x)).view(*x.shape[:2], HEADS, -1).transpose(1, 2).chunk(3, -1)
        scores = functional.dropout((q @ k.transpose(-1, -2) / 4).softmax(-1), 0.1, self.training)
        x = x + self.project((scores @ v).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.batch_norm(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def trained(choice: Recompute) -> tuple[dict[str, Tensor], int]:
    """Gradients and buffers of one step, and the bytes that it has saved for its backward pass."""
    torch.manual_seed(5)
    model = Network()
    recompute_blocks(model, choice)
    x, storages = torch.randn(2, TOKENS, WIDTH), dict[int, int]()

    def keep(value: Tensor) -> Tensor:
        storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = model(x).square().mean()
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return {"loss": loss.detach(), **found, **copy.deepcopy(dict(model.named_buffers()))}, sum(storages.values())


@pytest.mark.parametrize("name", ["full", "selective", "selective:mlp", "selective:core_attn,mlp", "selective:op"])
def test_recomputed_gradients_and_statistics_are_the_same_bits(name: str) -> None:
    plain, again = trained(Recompute.of("none")), trained(Recompute.of(name))
    assert plain[0].keys() == again[0].keys()
    assert all(torch.equal(plain[0][key], again[0][key]) for key in plain[0])
    if name in ("full", "selective:mlp"):  # others keep tensors in the policy's own storage
        assert again[1] < 0.75 * plain[1]


def test_a_number_of_layers_is_spread_and_names_stay() -> None:
    model = Network()
    names = [name for name, _ in model.named_parameters()]
    assert recompute_blocks(model, Recompute.of("full", 2)) == ["layers.1", "layers.2"]
    assert names == [name for name, _ in model.named_parameters()]
    with pytest.raises(UserError, match="the network has 3 blocks"):
        recompute_blocks(Network(), Recompute.of("full", 4))


@pytest.mark.parametrize(
    ("network", "choice", "said"),
    [(nn.Linear(2, 2), "full", "no module of the network"), (nn.Sequential(nn.Linear(2, 2)), "selective:mlp", "has a module")],
)
def test_a_network_without_the_part_is_refused(network: Any, choice: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        recompute_blocks(network, Recompute.of(choice))
