"""Check, before training, that a network without some structures computes the same as with zeros in them.

Rules tie the slices that are removed together. They cannot see code that uses a width as a plain number, or a function that
maps zero to another value. So each layer is tried: half of its structures are removed, then the last one, and the smaller
network must run and equal the masked one. A layer that fails is tried again with the numbers of its modules that may be its
width, such as ``split_size``, changed alike. If it fails still, it stays whole, and the reason is kept.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice, product
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UserError, shorten
from paceline.slimming.code_numbers import is_quotient, recorded
from paceline.slimming.export.export_failure import ExportFailure
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked
from paceline.slimming.structures.structures import PART, RemovableStructure, Structures, WidthNumber

_log = logging.getLogger("paceline")
LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.Embedding)
"""Modules of PyTorch whose sizes ``shrink`` sets."""
MOST_APART = 1e-3
"""Tolerance relative to the largest output: the rounding of single precision over many layers."""
AT_WIDTH = "runs only at the whole width"
"""Part of the reason of a layer whose code knows its width. The error itself is in the log ``paceline``, at level debug."""
NO_FORM = "no smaller form of its module is known"
OTHER = "without a part of it the output differs from the output with zeros there"


def sound(found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
    """Return really removable structures. The caller's random state is preserved, so a resumed training is not changed.

    Args:
        model: whole, on one process. ``inputs``: an example.

    Raises:
        UserError: the network cannot be copied.
    """
    cards = sorted({each.device.index for each in model.parameters() if each.is_cuda})
    with torch.random.fork_rng(devices=cards):
        return _sound(found, model, inputs)


def _sound(found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
    trial = _Trial(found, model, inputs)
    layers = found.layers()
    bad = _failing(trial, layers, [])
    counted = {name: numbers for name, numbers in found.numbers.items() if any(each.units for each in numbers)}
    if parts := _parts({name: layers[name] for name in (*bad, *counted)}):  # something stays of each
        found.numbers |= {name: counted[layer] for name in parts if (layer := name.partition(PART)[0]) in counted}
        renamed = {each.number: each for every in parts.values() for each in every}
        found.every = tuple(renamed.get(each.number, each) for each in found.every)
        layers = found.layers()
        bad = {name: why for name, why in bad.items() if name in layers}
        bad |= _failing(trial, parts, [every for name, every in layers.items() if name not in {*bad, *parts}])
    for name, why in bad.items():
        found.kept.setdefault(name.rpartition(".")[0] or name, why)
        found.rejected |= dict.fromkeys((each.number for each in layers[name]), why)
    left = found.only(each for name, every in layers.items() if name not in bad for each in every)
    branches = {branch.name: branch for branch in left.branches}
    gone = _passing(list(branches), lambda names: trial.without(set().union(*(branches[name].numbers for name in names))))
    return replace(left, branches=tuple(branch for name, branch in branches.items() if not gone[name]))


def _failing(
    trial: _Trial, layers: Mapping[str, Sequence[RemovableStructure]], passed: Sequence[Sequence[RemovableStructure]]
) -> dict[str, str]:
    """Return the reasons of layers that cannot lose structures even with other numbers, next to those that passed before."""
    good = _passing(list(layers), lambda names: trial.why_not([*passed, *(layers[name] for name in names)]))
    bad = {name: why for name, why in good.items() if why}
    for name in [*bad]:
        if trial.fits(name, layers[name], [*passed, *(layers[each] for each in layers if each not in bad)]):
            del bad[name]
    return bad


def _parts(layers: Mapping[str, Sequence[RemovableStructure]]) -> dict[str, list[RemovableStructure]]:
    """Return the parts of layers whose outputs go different ways, such as a step and two states, as separate layers."""
    found: dict[str, list[RemovableStructure]] = {}
    for layer, every in layers.items():
        ways: dict[frozenset[tuple[str, int]], list[RemovableStructure]] = {}
        for each in every:
            ways.setdefault(frozenset((part.parameter, part.dim) for part in each.slices), []).append(each)
        for number, part in enumerate(ways.values(), 1) if len(ways) > 1 else ():
            name = f"{layer}{PART}{number})"
            found[name] = [replace(each, layer=name) for each in part]
    return found


def _passing(names: Sequence[str], why_not: Callable[[Sequence[str]], str]) -> Mapping[str, str]:
    """Return the reason why each name fails, or an empty text. Names that pass also pass together."""
    found: dict[str, str] = {}
    good: list[str] = []

    def search(some: Sequence[str]) -> None:
        why = why_not([*good, *some]) if some else ""
        if not why:
            good.extend(some)
            found.update(dict.fromkeys(some, ""))
        elif len(some) == 1:
            found[some[0]] = why
        else:
            search(some[: len(some) // 2])
            search(some[len(some) // 2 :])

    search(names)
    return found


SETTINGS = ("config", "cfg", "args", "hparams")
"""Attributes that may hold a module's settings; a module with another number in them gets its own copy."""
MOST_TRIALS = 40
"""Combinations of numbers that are tried for a layer."""


class _Trial:
    """Trial of a network with weights that hide no error."""

    def __init__(self, found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.found = found
        try:
            self.model = _revealing(copy.deepcopy(model))
        except (RuntimeError, TypeError) as error:  # deepcopy of non-leaf tensors, locks or generators
            raise UserError(
                f"{type(model).__name__} cannot be copied: {shorten(str(error))}", "make it of plain parameters"
            ) from error
        self.inputs = tuple(each.float() if isinstance(each, Tensor) and each.is_floating_point() else each for each in inputs)
        self.trains = self._runs_in_training(self.model)
        self._names: list[tuple[tuple[str, str], ...]] = []
        self._stated: dict[str, dict[str, int]] | None = None

    def why_not(self, layers: Collection[Sequence[RemovableStructure]]) -> str:
        """Return the reason why these layers cannot lose structures; empty if they can."""
        for part in (_every_second, _last):
            if why := self.without({each.number for every in layers for each in part(every)}):
                return why
        return ""

    def fits(self, layer: str, every: Sequence[RemovableStructure], others: Sequence[Sequence[RemovableStructure]]) -> bool:
        """Return whether the layer can lose structures with other numbers in its modules; they are kept in ``found``."""
        taken = {(each.module, each.attribute) for numbers in self.found.numbers.values() for each in numbers}
        may = [each for each in _width_numbers(self.model, every) if (each.module, each.attribute) not in taken]
        depth = layer.rpartition(".")[0]
        alike = [each for before in self._names if (each := _like(before, depth, may))]  # as in a layer before
        own = [each for each in may if "." not in each.attribute]
        by_name: dict[str, list[WidthNumber]] = defaultdict(list)
        for number in own:
            by_name[number.attribute].append(number)
        many = [each for each in by_name.values() if len(each) > 1]  # as of a width that many modules read
        together = (tuple(chain.from_iterable(each)) for count in (1, 2) for each in combinations(many, count))
        first = (each for count in (1, 2, 3) for each in combinations(own, count))
        settings = (each for count in (1, 2) for each in combinations(may, count) if not set(each) <= set(own))
        code = self._code_numbers(every)
        literal = (tuple(chain.from_iterable(each)) for count in (1, 2, 3) for each in combinations(code, count))
        mixed = ((one, *chain.from_iterable(each)) for one in own for count in (1, 2) for each in combinations(code, count))
        ways = (together, first, settings, literal, mixed)
        for numbers in chain(alike, islice(self._counted(every), MOST_TRIALS), *(islice(each, MOST_TRIALS) for each in ways)):
            self.found.numbers[layer] = tuple(numbers)
            if not self.why_not([every]) and not self.why_not([*others, every]):
                self._names.append(tuple((_relative(each.module, depth), each.attribute) for each in numbers))
                return True
        self.found.numbers.pop(layer, None)
        return False

    def _counted(self, every: Sequence[RemovableStructure]) -> Iterator[tuple[WidthNumber, ...]]:
        """Return the sizes of splits that a layer has a part in: attributes of these values, or entries of a list."""
        numbers = {each.number for each in every}
        choices: list[list[tuple[WidthNumber, ...]]] = []
        modules = dict(self.model.named_modules())
        for place, parts in self.found.parts:
            path = place if place in modules else ""  # operations of the whole network have a name
            roots = [set(self.found.forest.roots(part).tolist()) for part in parts]
            if not any(each & numbers for each in roots):
                continue
            attributes = vars(modules[path])
            sizes = tuple(map(len, parts))
            lists = [name for name, each in attributes.items() if isinstance(each, list | tuple) and tuple(each) == sizes]
            units = [tuple(part.tolist()) for part in parts]
            if lists:
                choices += [[(WidthNumber(path, f"{lists[0]}.{at}", sizes[at], units=units[at]),)] for at in range(len(sizes))]
                continue
            for size, own, roots_of in zip(sizes, units, roots, strict=True):
                named = [name for name, each in attributes.items() if type(each) is int and each == size]
                if named and roots_of & numbers:
                    choices.append([*((WidthNumber(path, name, size, units=own),) for name in named)])
        for way in product(*choices) if choices else ():
            yield tuple(dict.fromkeys(chain.from_iterable(way)))

    def _code_numbers(self, every: Sequence[RemovableStructure]) -> list[tuple[WidthNumber, ...]]:
        """Return the numbers in the code around a layer that may be its width, those of one value in a module together.

        Quotients that are the width of one structure, such as ``width // heads``, then stay as they are.
        """
        if self._stated is None:
            try:
                with recorded(self.model) as self._stated, torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self.model(*self.inputs)
            except Exception as error:  # code that is not as its source says
                _log.debug("numbers of the code: %s: %s", type(error).__name__, error)
                self._stated = {}
        tensors = {**dict(self.model.named_parameters(remove_duplicate=False)), **dict(self.model.named_buffers())}
        sizes = {len(tensors[part.parameter]) for part in every[0].slices if part.parameter in tensors}
        sizes |= {tensors[part.parameter].shape[part.dim] for part in every[0].slices if part.parameter in tensors}
        rows = {len(part.indices) for part in every[0].slices} - {1}
        names = [part.parameter.split(".")[:-1] for part in every[0].slices]
        paths = dict.fromkeys(".".join(name[:depth]) for name in names for depth in range(len(name), -1, -1))
        found: dict[tuple[str, int], list[WidthNumber]] = defaultdict(list)
        for path in paths:
            module = self.model.get_submodule(path) if path else self.model
            stay = []
            for place, value in self._stated.get(path, {}).items():
                if value in rows and is_quotient(module, place):
                    stay.append(WidthNumber(path, place, value, stays=True))
                elif value <= max(sizes) and value % len(every) == 0:
                    found[path, value].append(WidthNumber(path, place, value))
            for key in found if stay else ():
                found[key] += stay if key[0] == path else []
        first = {*sizes, len(every)}
        return [tuple(found[key]) for key in sorted(found, key=lambda key: (key[1] not in first, key[1]))]

    def without(self, removed: Collection[int]) -> str:
        """Return the reason why these structures cannot be removed; empty if they can."""
        if not removed:
            return ""
        try:
            small = load(SlimPlan.of(self.found, removed), self.model)
        except UserError as error:
            return error.message
        except Exception as error:  # a module of a kind that is unknown here
            return _fails(NO_FORM, error)
        try:
            apart = differs(masked(self.model, self.found, removed), small, self.inputs)
        except UserError as error:
            return error.message
        except Exception as error:  # any error of the network's code at another width
            return _fails(_line_of(error, small), error)
        if not apart <= MOST_APART:
            return OTHER
        return self._why_not_training(small) if self.trains else ""

    def _runs_in_training(self, model: nn.Module) -> bool:
        return not self._why_not_training(copy.deepcopy(model))

    def _why_not_training(self, model: nn.Module) -> str:
        """Return why the network fails in training mode, where other layers run; empty if it works."""
        try:
            with torch.no_grad():
                model.train()(*(torch.cat([each, each]) if _is_batch(each) else each for each in self.inputs))
        except Exception as error:  # as above
            return _fails(_line_of(error, model), error)
        finally:
            model.eval()
        return ""


def _width_numbers(model: nn.Module, every: Sequence[RemovableStructure]) -> list[WidthNumber]:
    """Return the numbers of the modules around a layer that may be its width: multiples of the number of its structures.

    Those that equal the size of one of its dimensions come first.
    """
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    sizes = {tensors[part.parameter].shape[part.dim] for part in every[0].slices}
    parts = {size // count for size in sizes for count in (2, 3, 4) if size % count == 0}
    paths = dict.fromkeys(part.parameter.rpartition(".")[0] for part in every[0].slices)
    paths |= dict.fromkeys(path.rpartition(".")[0] for path in [*paths])
    found = [
        WidthNumber(path, name, value)
        for path in paths
        for module in [model.get_submodule(path) if path else model]
        if not isinstance(module, LAYERS)  # their sizes follow their weights
        for name, value in _numbers_of(module)
        if 1 < value <= max(sizes) and value % len(every) == 0
    ]
    return sorted(found, key=lambda each: ("." in each.attribute, each.value not in sizes, each.value not in parts))


def _numbers_of(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers among the attributes of a module and of its settings, such as ``config.num_attention_heads``."""
    for name, value in vars(module).items():
        if type(value) is int:
            yield name, value
        elif name in SETTINGS and hasattr(value, "__dict__"):
            yield from ((f"{name}.{key}", number) for key, number in vars(value).items() if type(number) is int)


def _like(names: Sequence[tuple[str, str]], depth: str, may: Sequence[WidthNumber]) -> tuple[WidthNumber, ...]:
    """Return the numbers of the same names around another layer; none if one is missing."""
    by_name = {(_relative(each.module, depth), each.attribute): each for each in may}
    return tuple(by_name[name] for name in names) if all(name in by_name for name in names) else ()


def _relative(module: str, layer: str) -> str:
    """Return a module's path as seen from a layer: the steps up, then down."""
    here, there = layer.split("."), module.split(".") if module else []
    same = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    return ".".join(["^"] * (len(here) - same) + there[same:])


def _every_second(every: Sequence[RemovableStructure]) -> Sequence[RemovableStructure]:
    """Return every second structure, or the outer ones of a kernel."""
    return every[: (len(every) + 1) // 2] if every[0].nested else every[1::2]


def _last(every: Sequence[RemovableStructure]) -> Sequence[RemovableStructure]:
    """Return an odd number of structures, or all of a kernel."""
    return every if every[0].nested else every[1:][-1:]


def _is_batch(value: Any) -> bool:
    """Return whether there is only one sample, because batch norms need two in training."""
    return isinstance(value, Tensor) and value.dim() > 1 and len(value) == 1


def _line_of(error: Exception, small: nn.Module) -> str:
    """Describe the line of the network's code that fails at another width."""
    failure = ExportFailure.of(error, small)
    code = f": `{shorten(failure.code, 100)}` ({failure.where})" if failure.code else ""
    return f"{failure.module or 'the code'} {AT_WIDTH}{code}"


def _fails(why: str, error: Exception) -> str:
    """Return a reason, and write the error behind it for developers."""
    _log.debug("%s: %s: %s", why, type(error).__name__, error)
    return why


@torch.no_grad()
def _revealing(model: nn.Module) -> nn.Module:
    """Convert to at least single precision, and vary constant tensors, because zeros would hide errors in their factors."""
    if any(each.dtype in (torch.bfloat16, torch.float16) for each in model.parameters()):
        model.float()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        alike = tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
        if alike and not name.endswith("running_var"):
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator).to(tensor)
    return model.eval()
