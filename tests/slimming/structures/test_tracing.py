"""Which structures a network has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models.vision.resnet import resnet18_cifar
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.structures import OUTPUT, Structures
from paceline.slimming.structures.tracing import FROZEN, structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens


def sizes(found: Structures) -> dict[str, int]:
    return {layer: len(every) for layer, every in found.without_kernels().layers().items()}


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


@pytest.mark.long
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

    model, x = Odd(), torch.randn(2, 4)
    found = METHODS["auto"].structures(structures_of(model, (x,)), model, (x,))
    assert sizes(found) == {"second.weight": 6} and found.kept == {"first": "fft_fft needs it whole"}


class Channels(nn.Module):
    """The second convolution's channels are summed up one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.up = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.ConvTranspose2d(6, 4, 2, bias=False)
        self.output = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cumsum(self.second(torch.relu(self.first(x))), 1)
        result: Tensor = self.output(self.up(x).mean((2, 3)))
        return result


def kept_by(method: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, str]:
    return dict(METHODS[method].structures(structures_of(model, inputs), model, inputs).kept)


def test_every_layer_whose_width_stays_is_named_with_the_reason() -> None:
    assert kept_by("auto", Channels(), images()) == {"second": "cumsum needs it whole"}
    norm, (first, second) = "layer_norm averages over it", (f"encoder.layers.{n}" for n in range(2))
    residual = ["table", *(f"{each}.{part}" for each in (first, second) for part in ("self_attn.out_proj", "linear2"))]
    assert kept_by("auto", Transformer(), tokens()) == {**dict.fromkeys(residual, norm), "output": OUTPUT}
    assert kept_by("auto", Residual(), images()) == {}, "what the network gives out keeps its width, whatever else"


def test_what_a_method_leaves_to_others_is_named() -> None:
    assert kept_by("ssl", Recurrent(), tokens()) == {"layers": "ssl does not remove its structures", "output": OUTPUT}
    assert kept_by("iss", Recurrent(), tokens()) == {"table": "iss does not remove its structures"}


def test_structures_with_a_frozen_weight_stay() -> None:
    model = Residual()
    model.second.weight.requires_grad_(False)
    found = structures_of(model, images())
    assert not found.without_kernels().every, "its inputs are the first one's filters, its outputs the stem's"
    assert found.forest.reasons(found.units["first.weight"][0]) == [FROZEN]
    model = Residual().requires_grad_(False)
    model.second.requires_grad_(True)
    with pytest.raises(UserError, match=r"nothing that could be removed \(stem.0: frozen"):
        METHODS["auto"].structures(structures_of(model, images()), model, images())


class Scaled(torch.autograd.Function):
    """An operation that PyTorch does not know."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[None, None]:
        return None, None


@torch.library.custom_op("slimming_tests::mixed", mutates_args=())
def mixed(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


@mixed.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


class Custom(nn.Module):
    """A layer of the user's with its own weight, between two that may be smaller."""

    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.operation, self.weight = operation, nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(x, self.weight)


def test_a_layer_of_the_user_with_an_operation_that_nobody_knows_stays_whole_and_is_named() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 6),
        Custom(lambda x, weight: mixed(x, weight)),
        nn.Linear(6, 5),
        nn.Linear(5, 2),
    )
    found = METHODS["auto"].structures(structures_of(model, (torch.randn(3, 4),)), model, (torch.randn(3, 4),))
    why = "mixed needs it whole"
    assert found.kept == {"3": why, "2": why} and sizes(found) == {"0.weight": 8, "4.weight": 5}
    x, removed = torch.randn(3, 4), {each.number for each in found.every[::2]}
    assert differs(masked(model, found, removed), shrunk(model, found, removed), (x,)) < 1e-5
    model[3] = Custom(Scaled.apply)
    found = METHODS["auto"].structures(structures_of(model, (x,)), model, (x,))
    assert sizes(found) == {"0.weight": 8, "2.weight": 6, "3.weight": 6, "4.weight": 5}, "its operation is seen through"


def test_what_cannot_be_traced_is_refused_with_its_line() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(UserError, match=r"Branching cannot be traced: .*test_tracing.py.*line \d+"):
        structures_of(Branching(), (torch.randn(2, 4),))
