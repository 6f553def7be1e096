"""What was removed is gone, and the smaller network computes what the masked one does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.models.sequences.gpt2 import Gpt2
from paceline.models.vision.compact import narrow
from paceline.models.vision.googlenet import googlenet
from paceline.models.vision.resnet import resnet18_cifar
from paceline.slimming.structures.recurrent_stack import RecurrentStack
from paceline.slimming.structures.shrink import BYTES, differs, masked, shrunk, weight_bytes
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Deconvolutions, Recurrent, Residual, Transformer, images, tokens, unlike

MAKERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "residual": (Residual, images),
    "resnet18": (resnet18_cifar, lambda: (torch.randn(2, 3, 32, 32),)),
    "lstm": (Recurrent, tokens),
    "lstm projected": (lambda: Recurrent(proj_size=6), tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
    "rnn": (lambda: Recurrent(nn.RNN, bias=False), tokens),
    "both directions": (lambda: Recurrent(bidirectional=True), tokens),
    "transformer": (Transformer, tokens),
    "gpt2": (lambda: Gpt2(layers=2, width=32, heads=4), tokens),
    "conv-m": (lambda: narrow(0.5), lambda: (torch.randn(2, 1, 28, 28),)),
    "deconvolutions": (Deconvolutions, lambda: (torch.randn(2, 3, 8),)),
    "googlenet": (googlenet, lambda: (torch.randn(1, 3, 224, 224),)),
}


def drawn(found: Structures, share: float, seed: int) -> set[int]:
    """So many of each layer, but not all; both directions of a layer as many. Of kernels the outer pairs, or all."""
    pick, removed = random.Random(seed), set()
    for every in found.layers().values():
        if every[0].nested:
            removed |= {each.number for each in every[: round(len(every) * share)]}
        else:
            removed |= {each.number for each in pick.sample(every, min(int(len(every) * share), len(every) - 1))}
    return removed


@pytest.mark.everyday(
    "0.3-residual",
    "0.3-lstm projected",
    "0.3-gru",
    "0.3-both directions",
    "0.3-transformer",
    "0.3-gpt2",
    "0.3-conv-m",
    "0.3-deconvolutions",
    "0.9-rnn",
    others="long",
)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_the_smaller_network_computes_what_the_masked_one_does(name: str, share: float) -> None:
    make, example = MAKERS[name]
    model, inputs = unlike(make()), example()
    found = structures_of(model, inputs)
    removed = drawn(found, share, 1)
    before = [parameter.clone() for parameter in model.parameters()]
    same, small = masked(model, found, removed), shrunk(model, found, removed)
    assert differs(same, small, inputs) < 1e-5
    assert differs(model, small, inputs) > 1e-3, "what was removed counted"
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)), "the model stays"
    gone = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters())
    assert gone > 0 and not any(isinstance(module, nn.MultiheadAttention) for module in small.modules())


@pytest.mark.long
@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_any_choice_can_be_removed(seed: int, share: float) -> None:
    model, inputs = unlike(Residual(), seed % 7), images()
    found = structures_of(model, inputs)
    removed = drawn(found, share, seed)
    assert differs(masked(model, found, removed), shrunk(model, found, removed), inputs) < 1e-5


def test_layers_know_their_new_sizes_and_train_on() -> None:
    model, inputs = unlike(Residual()), images()
    found = structures_of(model, inputs)
    small = shrunk(model.train(), found, drawn(found, 0.5, 3))
    assert isinstance(small, Residual) and small.training
    assert (small.stem[0].out_channels, small.stem[1].num_features, small.first.in_channels) == (4, 4, 4)
    assert (small.depthwise.groups, small.grouped.groups, small.grouped.in_channels, small.grouped.out_channels) == (4, 2, 4, 8)
    assert small.output.in_features == small.output.weight.shape[1] == (4 + 8) * 16
    small(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    model, inputs = unlike(Deconvolutions()), (torch.randn(2, 3, 8),)
    found = structures_of(model, inputs)
    thin = shrunk(model, found, drawn(found, 0.5, 3))
    assert isinstance(thin, Deconvolutions) and (thin.up.in_channels, thin.up.out_channels) == (4, 5)
    assert thin.up.bias is not None and len(thin.up.bias) == 5 and thin.out.in_channels == 5


def test_layers_of_one_width_stay_one_module_and_others_become_a_stack() -> None:
    model, inputs = unlike(Recurrent()), tokens()
    found = structures_of(model, inputs)
    layers = found.layers()
    alike = {each.number for layer in ("layers.weight_ih_l0", "layers.weight_ih_l1") for each in layers[layer][:5]}
    small = shrunk(model, found, alike)
    assert isinstance(small, Recurrent) and type(small.layers) is nn.LSTM
    assert (small.layers.hidden_size, small.layers.num_layers) == (7, 2)
    unequal = shrunk(model, found, {each.number for each in layers["layers.weight_ih_l0"][:5]})
    assert isinstance(unequal, Recurrent) and isinstance(unequal.layers, RecurrentStack)
    assert [layer.hidden_size for layer in unequal.layers.layers] == [7, 12]


def test_tied_weights_stay_tied() -> None:
    model = Gpt2(layers=1, width=16, heads=4)
    found = structures_of(model, tokens())
    small = shrunk(model, found, {each.number for each in found.layers()["blocks.0.expand.weight"][:9]})
    assert isinstance(small, Gpt2) and small.head.weight is small.tokens.weight


def test_bytes_are_those_of_the_smaller_network() -> None:
    for model, example in ((Residual(), images()), (Transformer(), tokens())):
        found = structures_of(model, example)
        gone = {each.number for every in found.layers().values() for each in every[::2][: len(every) - 1]}
        for removed in (set[int](), gone):
            small = shrunk(model, found, removed)
            tensors = [*small.parameters(), *small.buffers()]
            assert weight_bytes(found, removed) == BYTES * sum(each.numel() for each in tensors if each.dim())
