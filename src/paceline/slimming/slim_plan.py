"""Remaining parts of each parameter, as plain data. A slimmed network is code, this plan and weights, without any pickle."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from paceline.errors import UserError, shorten
from paceline.slimming.structures.given_tensors import NarrowInput
from paceline.slimming.structures.structures import Average, Structures

VERSION = 1


@dataclass(frozen=True)
class SlimPlan:
    """The remaining parts of a network.

    Attributes:
        kept: indices by parameter or buffer and dimension, ascending; others stay whole.
        heads: by module, groups of rows of its first parameter before and after, such as heads of attention.
        shapes: shapes of the parameters that become smaller, in the whole network.
        replacements: after the removal, other modules by path, empty for the whole network: ``kind`` and its settings
            (``replacements.replaced``).
        numbers: widths that the code of a module holds as numbers: by module and attribute, the new value.
        inputs: by module and argument, what stays of a whole tensor that it is given.
        averages: by the weight of a norm over fewer units, the norm and the whole number over the remaining one.
    """

    kept: Mapping[tuple[str, int], tuple[int, ...]]
    heads: Mapping[str, tuple[int, int]]
    shapes: Mapping[str, tuple[int, ...]]
    replacements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, NarrowInput]] = field(default_factory=dict)
    averages: Mapping[str, tuple[Average, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, structures: Structures, removed: Collection[int]) -> SlimPlan:
        """Return the plan without the structures of these numbers.

        Raises:
            UserError: a layer would keep none of its structures, or a kernel outer rows without the inner ones.
        """
        _check_order(structures, removed)
        gone: dict[tuple[str, int], set[int]] = defaultdict(set)
        emptied = structures.emptied(removed)
        removed = set(removed).difference(*(branch.numbers for branch in emptied))  # replaced whole
        for structure in structures.every:
            for part in structure.slices if structure.number in removed else ():
                gone[part.parameter, part.dim] |= set(part.indices)
        shapes = {name: tuple(map(len, structures.units[name])) for name, _ in gone}
        kept = {
            (name, dim): tuple(index for index in range(shapes[name][dim]) if index not in indices)
            for (name, dim), indices in gone.items()
        }
        if empty := next((name for (name, _), indices in kept.items() if not indices), ""):
            raise UserError(f"nothing would be left of {empty}", "keep at least one structure of each layer")
        branches = {each.name: {"last": each.last, "norm": each.norm, "hollow": list(each.hollow)} for each in emptied}
        replacements = {"": {"kind": "without_branches", "branches": branches}} if branches else {}
        numbers, inputs = _numbers(structures, removed), _inputs(structures, removed)
        averages = {
            name: (structures.averages[name], shapes[name][dim] / len(stay))
            for (name, dim), stay in kept.items()
            if name in structures.averages
        }
        return cls(kept, _heads(structures, removed), shapes, replacements, numbers, inputs, averages)

    def removed(self, structures: Structures) -> set[int]:
        """Return the numbers of the structures that the plan removes; inverts ``of``.

        Args:
            structures: structures of the same network; there may be more than ``of`` had.
        """
        stays = {key: set(indices) for key, indices in self.kept.items()}
        emptied = self.replacements.get("", {}).get("branches", {})
        gone = {number for branch in structures.branches if branch.name in emptied for number in branch.numbers}
        return gone | {
            each.number
            for each in structures.every
            for first in each.slices[:1]
            if not stays.get((first.parameter, first.dim), set(first.indices)) & set(first.indices)
        }

    def check(self, model: nn.Module) -> None:
        """Check a network. Raises UserError if its shapes or modules differ from the plan's."""
        modules = dict(model.named_modules())
        if missing := next((path for path in self.replacements if path not in modules), ""):
            raise UserError(f"the plan is of another network: this one has no {missing}")
        tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
        for name, shape in self.shapes.items():
            found = tuple(tensors[name].shape) if name in tensors else None
            if found != shape:
                what = f"has {name} of {_text(found)}" if found is not None else f"has no {name}"
                raise UserError(f"the plan is of another network: this one {what}, the plan's is of {_text(shape)}")

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. Raises UserError if it cannot be written."""
        by_name: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for (name, dim), indices in self.kept.items():
            by_name[name][str(dim)] = list(indices)
        data: dict[str, Any] = {"version": VERSION, "kept": by_name, "heads": self.heads, "shapes": self.shapes}
        data["replacements"] = {path: dict(each) for path, each in self.replacements.items()}
        data["numbers"] = {path: dict(each) for path, each in self.numbers.items()}
        if self.inputs:
            data["inputs"] = {path: {name: asdict(one) for name, one in each.items()} for path, each in self.inputs.items()}
        if self.averages:
            data["averages"] = {name: {**asdict(each), "ratio": ratio} for name, (each, ratio) in self.averages.items()}
        file, draft = Path(path), Path(f"{path}.draft")
        try:
            draft.write_text(json.dumps(data), encoding="utf-8")
            draft.replace(file)
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror or error}", "give another place") from error

    @classmethod
    def load(cls, path: str | Path) -> SlimPlan:
        """Read a plan written by ``save``. Raises UserError for other files."""
        try:
            data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise UserError(f"{path} is a plan of version {data['version']}", f"this release reads version {VERSION}")
            kept = {
                (name, int(dim)): tuple(map(int, each)) for name, dims in data["kept"].items() for dim, each in dims.items()
            }
            heads = {name: (int(before), int(left)) for name, (before, left) in data["heads"].items()}
            shapes = {name: tuple(map(int, shape)) for name, shape in data["shapes"].items()}
            replacements = {path: dict(each) for path, each in data["replacements"].items()}
            numbers = {path: {n: int(v) for n, v in each.items()} for path, each in data.get("numbers", {}).items()}
            inputs = {path: {n: _input(one) for n, one in each.items()} for path, each in data.get("inputs", {}).items()}
            averages = {name: _average(each) for name, each in data.get("averages", {}).items()}
            return cls(kept, heads, shapes, replacements, numbers, inputs, averages)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is no plan: {shorten(f'{type(error).__name__}: {error}')}") from error


def _check_order(structures: Structures, removed: Collection[int]) -> None:
    for layer, every in structures.layers().items():
        gone = [each.number in removed for each in every]
        if every[0].nested and gone != sorted(gone, reverse=True):
            raise UserError(f"the {layer} would go from the inside", "remove the outer ones first")


def _heads(structures: Structures, removed: Collection[int]) -> dict[str, tuple[int, int]]:
    found = {}
    for layer, every in structures.layers().items():
        first = next((part for part in every[0].slices if part.parameter == layer and part.dim == 0), None)
        if first is not None and len(first.indices) > 1:
            left = sum(structure.number not in removed for structure in every)
            if left < len(every):
                found[layer.rpartition(".")[0].rpartition(".")[0]] = (len(every), left)
    return found


def _numbers(structures: Structures, removed: Collection[int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for layer, every in structures.layers().items():
        left = sum(structure.number not in removed for structure in every)
        for number in structures.numbers.get(layer, ()) if left < len(every) else ():
            whole = number.value if number.stays else number.value * left // len(every)
            roots = structures.forest.roots(np.array(number.units)).tolist() if number.units else []
            remaining = sum(root not in removed for root in roots)
            found[number.module][number.attribute] = remaining if number.units else whole
    return dict(found)


def _inputs(structures: Structures, removed: Collection[int]) -> dict[str, dict[str, NarrowInput]]:
    found: dict[str, dict[str, NarrowInput]] = defaultdict(dict)
    for (path, name), (dim, units) in structures.entering.items():
        stay = [index for index, root in enumerate(structures.forest.roots(units).tolist()) if root not in removed]
        if len(stay) < len(units):
            found[path][name] = NarrowInput(dim, len(units), tuple(stay))
    return dict(found)


def _input(data: Mapping[str, Any]) -> NarrowInput:
    return NarrowInput(int(data["dim"]), int(data["whole"]), tuple(map(int, data["stay"])))


def _average(data: Mapping[str, Any]) -> tuple[Average, float]:
    epsilon = None if data["epsilon"] is None else float(data["epsilon"])
    average = Average(str(data["weight"]), float(data["power"]), float(data["offset"]), epsilon, int(data["dim"]))
    return average, float(data["ratio"])


def _text(shape: tuple[int, ...] | None) -> str:
    return " x ".join(map(str, shape or ()))
