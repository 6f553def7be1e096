"""A module that cannot be exported stays whole, and the rest is slimmed as if it were one operation without a rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from opaque_modules import OPAQUE, WIDTH, Branching, Fixed, Inside, Twice, around
from paceline.errors import UserError
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.structures.exported_graph import exported_graph
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import unlike

X = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
ROUND: dict[str, Callable[[Callable[[], nn.Module]], nn.Module]] = {
    "in a sequence": lambda inner: around(inner()),
    "two deep": lambda inner: around(Inside(inner())),
    "two of them": lambda inner: around(inner(), nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH), inner()),
    "one after the other": lambda inner: around(inner(), inner()),
    "used twice": lambda inner: around(Twice(inner())),
}


def slices(found: Structures) -> set[frozenset[tuple[str, int, tuple[int, ...]]]]:
    return {frozenset((part.parameter, part.dim, part.indices) for part in each.slices) for each in found.every}


def small_equals_masked(model: nn.Module, found: Structures, *inputs: tuple[Tensor, ...]) -> bool:
    removed = {each.number for each in found.every[::2]}
    small = shrunk(model, found, removed)
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in model.parameters())
    return all(differs(masked(model, found, removed), small, each) < 1e-5 for each in inputs)


@pytest.mark.everyday(
    "Branching-in a sequence",
    "Counting-two deep",
    "InNumpy-two of them",
    "OwnGradient-used twice",
    "Packing-one after the other",
)
@pytest.mark.parametrize("place", ROUND)
@pytest.mark.parametrize("inner", OPAQUE)
def test_the_rest_has_the_structures_that_it_has_around_a_module_of_fixed_widths(
    inner: Callable[[], nn.Module], place: str
) -> None:
    model = unlike(ROUND[place](inner))
    found = structures_of(model, X)
    assert slices(found) == slices(structures_of(unlike(ROUND[place](Fixed)), X))
    assert {"0.weight", f"{len(list(model)) - 3}.weight"} <= set(found.layers())  # type: ignore[arg-type]
    assert small_equals_masked(model, found, X, (torch.randn(5, 4),))


def line_of(kind: type[nn.Module], text: str) -> int:
    lines, first = inspect.getsourcelines(kind)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_the_module_the_operation_and_the_line_are_named() -> None:
    model = around(Inside(Branching()))
    kept = METHODS["auto"].structures(structures_of(model, X), model, X).kept
    line = line_of(Branching, "if y.sum()")
    why = f"3.inner.2.1 (Branching) cannot be traced: `if y.sum() > 0:` (tests/opaque_modules.py, line {line})"
    assert kept["3.inner.2.1"].replace(str(inspect.getsourcefile(Branching)), "tests/opaque_modules.py") == why
    assert {place for place, each in kept.items() if each == kept["3.inner.2.1"]} == {
        *("3.inner.2.1", "3.inner.2.1.fc", "3.inner.2.0"),
    }


def test_a_network_that_can_be_exported_has_no_such_modules() -> None:
    assert not exported_graph(around(Fixed()), X).opaque


def test_the_module_is_as_it_was() -> None:
    model = around(Inside(Branching()))
    model[3].inner[2][1].forward = own = model[3].inner[2][1].forward  # type: ignore[union-attr, index]
    model[0].eval()
    before, drawn = {name: each.clone() for name, each in model.state_dict().items()}, torch.get_rng_state()
    structures_of(model, X)
    assert model[3].inner[2][1].forward is own and model.training and not model[0].training  # type: ignore[union-attr, index]
    assert not any("forward" in vars(each) for name, each in model.named_modules() if name != "3.inner.2.1")
    assert not any(each._forward_hooks for each in model.modules()) and torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


class Many(Branching):
    """Takes keywords; gives tensors of several kinds in a dict and a tuple."""

    def forward(self, x: Tensor, scale: float = 1.0, *, other: Tensor | None = None) -> dict[str, object]:  # type: ignore[override]
        y = super().forward(x) * scale
        return {"y": y, "rest": (y.argmax(-1), None, other)}


class TakesMany(nn.Module):
    """Uses one of them, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.side = nn.Linear(4, WIDTH), nn.Linear(4, 3)
        self.many, self.middle, self.out = Many(), nn.Linear(WIDTH, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        given = self.many(self.into(x), 2.0, other=self.side(x))
        return {"y": self.out(torch.relu(self.middle(given["y"]))), "best": given["rest"][0]}


def test_all_that_enters_it_stays_whole_and_its_results_may_be_nested() -> None:
    model = unlike(TakesMany())
    found = structures_of(model, X)
    assert set(found.layers()) == {"middle.weight"}, "the others' widths enter the module"
    assert small_equals_masked(model, found, X)


def test_what_leaves_without_a_use_still_keeps_what_enters() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.aside, self.last = nn.Linear(4, WIDTH), Branching(), nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            self.aside(x)
            result: Tensor = self.last(x)
            return result

    assert not structures_of(Dropped(), X).every


class Gate(Fixed):
    """Gives a number of Python."""

    def forward(self, x: Tensor) -> bool:  # type: ignore[override]
        return bool(self.fc(x).sum() > 0)


class Gated(nn.Module):
    """Chooses a layer by it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.one, self.other = Gate(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.one(x) if self.gate(x) else self.other(x)
        return result


def test_where_a_number_of_the_data_leaves_it_the_module_around_it_stays_whole() -> None:
    model = around(Gated())
    found = structures_of(model, X)
    assert set(found.layers()) == {"0.weight", "4.weight"} and "3 (Gated) cannot be traced" in found.kept["3"]
    with pytest.raises(UserError, match=r"Gated cannot be traced: gate \(Gate\): `return bool\(.*\)` \(.*, line \d+\): "):
        structures_of(Gated(), (torch.randn(2, WIDTH),))


def test_weights_that_are_tied_to_those_inside_stay_whole() -> None:
    model = around(Branching(), nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH), nn.Linear(WIDTH, WIDTH))
    free = structures_of(model, X)
    model[6].weight = model[3].fc.weight  # type: ignore[union-attr]
    tied = structures_of(model, X)
    assert {"5.weight", "6.weight"} <= set(free.layers()) and set(tied.layers()) == {"0.weight", "4.weight", "7.weight"}


def test_a_network_whose_own_forward_cannot_be_exported_is_refused_with_operation_and_line() -> None:
    line = line_of(Branching, "if y.sum()")
    says = rf"Branching cannot be traced: `if y.sum\(\) > 0:` \(.*opaque_modules.py, line {line}\): Could not guard.*; rewrite"
    with pytest.raises(UserError, match=says):
        structures_of(Branching(), (torch.randn(2, WIDTH),))


def test_an_example_that_does_not_fit_is_said() -> None:
    with pytest.raises(UserError, match=r"Sequential does not run on the example: 0 \(Linear\): .*shapes.*; give inputs"):
        structures_of(around(Branching()), (torch.randn(2, 5),))


class Sized(nn.Module):
    """As many rows as the data say, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows, self.last, self.out = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 5), nn.Linear(4, 2)
        self.into = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rows(torch.relu(self.first(x)))
        chosen = y[(y.sum(-1) > 0).nonzero().squeeze(1)]
        result: Tensor = self.out(torch.relu(self.into(x))) + self.last(chosen).sum()
        return result


def test_sizes_that_depend_on_data_keep_what_they_touch() -> None:
    model = unlike(Sized())
    found = structures_of(model, X)
    assert set(found.layers()) == {"first.weight", "into.weight"}
    assert any("depends on data" in why for why in found.kept.values())
    assert small_equals_masked(model, found, X, (torch.randn(7, 4),))


def test_a_choice_in_the_graph_has_no_rule() -> None:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.second(torch.relu(self.first(x)))
            x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
            result: Tensor = self.last(x)
            return result

    found = structures_of(Choice(), X)
    assert set(found.layers()) == {"first.weight"} and "the operation cond has no rule" in found.kept.values()


def test_what_the_example_does_not_use_stays_whole() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.aside, self.last = nn.Linear(4, 8), nn.Linear(9, 3), nn.Linear(8, 2)
            self.register_buffer("table", torch.randn(5, 7))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(torch.relu(self.first(x)))
            return result

    model = Aside()
    found = METHODS["auto"].structures(structures_of(model, X), model, X)
    assert set(found.layers()) == {"first.weight"}
    assert found.kept == {"aside": "the network does not use it on the example, in eval mode"}


class Regions(nn.Module):
    """A layer in a block of another precision, and gates whose gradients are not wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            x = torch.relu(self.second(2 * x.float()))
            with torch.no_grad():
                gates = x.sigmoid()
        result: Tensor = self.last(x * gates)
        return result


def test_layers_in_blocks_of_another_precision_or_without_gradients_shrink() -> None:
    model = Regions()
    found = structures_of(model, X)
    assert {layer: len(every) for layer, every in found.layers().items()} == {"first.weight": 8, "second.weight": 6}
    assert small_equals_masked(model, found, X)
