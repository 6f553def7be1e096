"""Intrinsic sparse structures: recurrent networks of every form lose units, and compute what they do with those at zero."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.slimming.export.onnx_export import difference, to_onnx
from paceline.slimming.methods.group_lasso import GroupLasso
from paceline.slimming.structures.recurrent_stack import RecurrentStack
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from recurrent_highway import Rhn
from slimming_networks import tokens, unlike

SAME = 1e-6
"""Of the largest output, in double precision."""


class Language(nn.Module):
    """Output weights tied to the embedding; three layers, dropout between them, no biases; time first; states are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(50, 8), nn.LSTM(8, 8, 3, bias=False, dropout=0.3)
        self.output = nn.Linear(8, 50)
        self.output.weight = self.table.weight

    def forward(self, x: Tensor, states: Any = None) -> tuple[Tensor, Any]:
        y, states = self.layers(self.table(x), states)
        return self.output(y), states


class Sentence(nn.Module):
    """What both directions of the last layer end with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.output = nn.GRU(5, 8, 2, bidirectional=True, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        ends = self.layers(x)[1]
        result: Tensor = self.output(torch.cat([ends[-2], ends[-1]], 1))
        return result


class Translation(nn.Module):
    """The states of one network begin another's."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (nn.LSTM(5, 8, 2, batch_first=True) for _ in range(2))
        self.output = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.decoder(x.flip(1), self.encoder(x)[1])[0])
        return result


class Projected(nn.Module):
    """Both directions and projections, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(5, 9, 2, batch_first=True, bidirectional=True, proj_size=4)
        self.output = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.layers(x)[0])
        return result


class Cells(nn.Module):
    """A cell of each kind, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.output = nn.LSTMCell(5, 8), nn.GRUCell(8, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, inner, found = None, None, []
        for step in x.unbind(1):
            state = self.first(step, state)
            inner = self.second(state[0], inner)
            found.append(self.output(inner))
        return torch.stack(found, 1)


class Caption(nn.Module):
    """A linear layer makes the first state."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.layer, self.output = nn.Linear(5, 8), nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, end = self.layer(x, self.begin(x[:, 0]).unsqueeze(0))
        result: Tensor = self.output(y) + self.output(end.squeeze(0)).unsqueeze(1)
        return result


class Highway(nn.Module):
    """A recurrent highway network, three deep."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = Rhn(5, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.layer(x))
        return result


def steps() -> tuple[Tensor, ...]:
    return (torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.double),)


def spread(found: Structures) -> set[int]:
    """Of each layer some, of none all, of no two layers as many."""
    removed: set[int] = set()
    for many, every in enumerate(found.layers().values()):
        removed |= {each.number for each in every[1 : 2 + many % (len(every) - 2)]}
    return removed


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], list[str]]] = {
    "language": (Language, tokens, [f"layers.weight_ih_l{n}" for n in range(3)]),
    "sentence": (Sentence, steps, ["layers.weight_ih_l0", "layers.weight_ih_l1"]),
    "translation": (Translation, steps, ["encoder.weight_ih_l0", "encoder.weight_ih_l1"]),
    "projected": (Projected, steps, [f"layers.weight_{part}_l{n}" for n in range(2) for part in ("ih", "hr")]),
    "cells": (Cells, steps, ["first.weight_ih", "second.weight_ih"]),
    "caption": (Caption, steps, ["begin.weight"]),
    "highway": (Highway, steps, ["layer.enter.weight"]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_without_units_computes_what_it_does_with_them_at_zero(name: str) -> None:
    make, example, layers = NETWORKS[name]
    model, inputs = unlike(make().double()), example()
    found = structures_of(model, inputs)
    assert sorted(found.layers()) == sorted(layers) and not found.kept
    removed = spread(found)
    small = shrunk(model, found, removed)
    assert differs(masked(model, found, removed), small, inputs) < SAME
    assert differs(model, small, inputs) > 1e-3, "what was removed counted"
    if isinstance(small, Cells):
        assert (small.first.hidden_size, small.second.input_size, small.second.hidden_size) == (7, 7, 5)
    if isinstance(small, Caption):
        assert type(small.layer) is nn.GRU and small.layer.hidden_size == 7


def test_states_are_carried_on_after_the_removal_and_dropout_stays_between_layers() -> None:
    model, (x,) = unlike(Language().double()), tokens()
    found = structures_of(model, (x,))
    small = shrunk(model, found, spread(found))
    assert isinstance(small, Language) and isinstance(small.layers, RecurrentStack) and small.layers.drop.p == 0.3
    assert small.output.weight is small.table.weight
    parts, states = [], None
    for part in (x[:1], x[1:]):
        y, states = small(part, states)
        parts.append(y)
    assert torch.allclose(torch.cat(parts), small(x)[0], atol=1e-9)
    assert states[0].shape == (3, 7, model.layers.hidden_size), "the structure of the whole network's states"
    gone = (states[0] == 0).all(1).sum(1)
    assert gone.tolist() == [model.layers.hidden_size - layer.hidden_size for layer in small.layers.layers]


@pytest.mark.long
def test_states_enter_and_leave_an_exported_file(tmp_path: Path) -> None:
    model, (x,) = unlike(Language()), tokens()
    found = structures_of(model, (x,))
    small = shrunk(model, found, spread(found))
    inputs = (x, tuple(part.detach() for part in small(x)[1]))
    assert difference(small, inputs, to_onnx(small, inputs, tmp_path / "net.onnx")) < 1e-5


@pytest.mark.long
def test_a_recurrent_highway_network_is_exported(tmp_path: Path) -> None:
    model, inputs = unlike(Highway()), (steps()[0].float(),)
    found = structures_of(model, inputs)
    small = shrunk(model, found, spread(found))
    assert difference(small, inputs, to_onnx(small, inputs, tmp_path / "net.onnx")) < 1e-5


def test_a_recurrent_highway_network_computes_its_equations() -> None:
    layer, (x,) = Rhn(5, 4, 2).double(), steps()
    state = torch.zeros(2, 4, dtype=torch.double)
    found = []
    for step in x.unbind(1):
        for depth, again in enumerate(layer.depths):
            entering = layer.enter(step) if depth == 0 else 0.0
            h, g = (entering + state @ again.weight.T + again.bias).split(4, 1)
            state = h.tanh() * g.sigmoid() + state * (1 - g.sigmoid())
        found.append(state)
    assert torch.allclose(layer(x), torch.stack(found, 1))
    assert torch.allclose(layer(x[:, 2:], layer(x[:, :2])[:, -1]), layer(x)[:, 2:])


def test_a_whole_state_of_the_caller_is_narrowed_and_a_narrow_one_is_taken_back() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.output = nn.LSTM(5, 6, 2), nn.Linear(6, 3)

        def forward(self, x: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
            y, after = self.layers(x, states)
            return self.output(y), after

    model, x = unlike(Given()), torch.randn(4, 2, 5)
    states = (torch.randn(2, 2, 6), torch.randn(2, 2, 6))
    found = structures_of(model, (x, states))
    assert list(found.layers()) == ["layers.weight_ih_l0", "layers.weight_ih_l1"]
    small = shrunk(model, found, spread(found))
    whole, (first, after) = small(x, states)[0], small(x[:2], states)
    assert differs(masked(model, found, spread(found)), small, (x, states)) < 1e-5
    assert torch.allclose(torch.cat([first, small(x[2:], after)[0]]), whole, atol=1e-6)


def test_states_of_several_layers_that_are_taken_as_one_tensor_stay_and_are_named() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.output = nn.GRU(5, 6, 2), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.output(self.layers(x)[1].mean(0))
            return result

    found = structures_of(Mean(), (torch.randn(3, 4, 5),))
    assert not found.every and found.kept == {"mean": "mean takes the states of several layers as one tensor"}


def test_packed_sequences_lose_units() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.middle, self.output = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=4)[0]
            result: Tensor = self.output(self.middle(y))
            return result

    found = structures_of(Packed(), (steps()[0].float(), torch.tensor([4, 3])))
    assert list(found.layers()) == ["layer.weight_ih_l0", "middle.weight"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_what_group_lasso_makes_zero_can_go_without_any_change(kind: type[nn.RNNBase]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.output = kind(5, 12, 2, batch_first=True), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.output(self.layers(x)[0])
            return result

    torch.manual_seed(0)
    model, inputs = Net().double(), steps()
    found = structures_of(model, inputs)
    optimizer = GroupLasso(torch.optim.SGD(model.parameters(), 0.2), model, found, 0.15)
    removed: set[int] = set()
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(*inputs), inputs[0][..., :3]).backward()
        optimizer.step()
        if len(removed := optimizer.removed()) >= 8:
            break
    assert 8 <= len(removed) < 24
    small = shrunk(model, found, removed)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert differs(model, small, inputs) < SAME


def test_directions_go_together_so_that_an_ordinary_layer_is_left() -> None:
    model, inputs = unlike(Sentence().double()), steps()
    found = structures_of(model, inputs)
    removed = {each.number for every in found.layers().values() for each in every[:3]}
    small = shrunk(model, found, removed)
    assert isinstance(small, Sentence) and type(small.layers) is nn.GRU
    assert (small.layers.hidden_size, small.output.in_features) == (5, 10)
    rows = [
        part.indices for part in found.every[0].slices if part.parameter.startswith("layers.weight_ih_l0") and part.dim == 0
    ]
    assert len(rows) == 2 and all(one == other for one, other in pairwise(rows))
