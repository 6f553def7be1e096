"""Which structures a network has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models import resnet18_cifar
from paceline.slimming.structures import Structures
from paceline.slimming.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens


def sizes(found: Structures) -> dict[str, int]:
    return {layer: len(every) for layer, every in found.layers().items()}


def slices(found: Structures, layer: str) -> set[tuple[str, int, int]]:
    return {(part.parameter, part.dim, len(part.indices)) for part in found.layers()[layer][0].slices}


def test_a_filter_goes_with_its_norm_and_the_next_inputs_and_channels_that_are_added_are_tied() -> None:
    found = structures_of(Residual(), images())
    assert sizes(found) == {"stem.0.weight": 4, "first.weight": 12}, "in groups of two, as the grouped convolution takes them"
    assert slices(found, "first.weight") == {
        ("first.weight", 0, 1),
        ("first.bias", 0, 1),
        ("norm.weight", 0, 1),
        ("norm.bias", 0, 1),
        ("norm.running_mean", 0, 1),
        ("norm.running_var", 0, 1),
        ("second.weight", 1, 1),
    }
    stem = slices(found, "stem.0.weight")
    assert {("stem.0.weight", 0, 2), ("second.weight", 0, 2), ("depthwise.weight", 0, 2), ("grouped.weight", 0, 4)} <= stem
    assert ("output.weight", 1, (2 + 4) * 16) in stem, "a channel is sixteen inputs after the flattening"


def test_a_resnet_has_one_width_a_stage_and_one_a_block() -> None:
    found = sizes(structures_of(resnet18_cifar(), (torch.randn(2, 3, 32, 32),)))
    assert sorted(found.values()) == [64] * 3 + [128] * 3 + [256] * 3 + [512] * 3


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_a_hidden_unit_goes_with_its_gates_and_the_next_inputs(kind: type[nn.RNNBase], gates: int) -> None:
    found = structures_of(Recurrent(kind), tokens())
    assert sizes(found) == {"table.weight": 8, "layers.weight_ih_l0": 12, "layers.weight_ih_l1": 12}
    assert slices(found, "layers.weight_ih_l0") == {
        ("layers.weight_ih_l0", 0, gates),
        ("layers.weight_hh_l0", 0, gates),
        ("layers.weight_hh_l0", 1, 1),
        ("layers.bias_ih_l0", 0, gates),
        ("layers.bias_hh_l0", 0, gates),
        ("layers.weight_ih_l1", 1, 1),
    }
    assert ("output.weight", 1, 1) in slices(found, "layers.weight_ih_l1")


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_has_heads_and_rows_and_keeps_the_width_that_norms_average_over(norm_first: bool) -> None:
    found = structures_of(Transformer(norm_first), tokens())
    names = [f"encoder.layers.{n}" for n in range(2)]
    assert sizes(found) == {
        **{f"{name}.self_attn.in_proj_weight": 4 for name in names},
        **{f"{name}.linear1.weight": 24 for name in names},
    }
    assert slices(found, f"{names[0]}.self_attn.in_proj_weight") == {
        (f"{names[0]}.self_attn.in_proj_weight", 0, 3 * 4),
        (f"{names[0]}.self_attn.in_proj_bias", 0, 3 * 4),
        (f"{names[0]}.self_attn.out_proj.weight", 1, 4),
    }


def test_tied_weights_are_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner, self.output = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 20, bias=False)
            self.output.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.output(torch.relu(self.inner(self.table(x))))
            return result

    found = structures_of(Tied(), (torch.randint(0, 20, (2, 3)),))
    assert slices(found, "inner.weight") == {
        ("table.weight", 1, 1),
        ("output.weight", 1, 1),
        ("inner.weight", 0, 1),
        ("inner.weight", 1, 1),
        ("inner.bias", 0, 1),
    }


def test_an_operation_without_a_rule_keeps_its_operands_and_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.third(torch.relu(self.second(torch.fft.fft(self.first(x)).real)))
            return result

    found = structures_of(Odd(), (torch.randn(2, 4),))
    assert sizes(found) == {"second.weight": 6}
    assert any("fft" in why for why in found.kept.values())


def test_what_cannot_be_traced_is_refused_with_its_line() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(UserError, match=r"Branching cannot be traced: .*test_tracing.py.*line \d+"):
        structures_of(Branching(), (torch.randn(2, 4),))
