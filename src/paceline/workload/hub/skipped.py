"""Modules whose forward pass is not traced, because their layers are known: equal blocks, and modules with a builder.

A deep network repeats a few blocks. Each kind runs once in a trace; the others give a tensor of the same shape, and their
layers are copies. Modules with custom kernels (scans, grouped experts) would run as a slow fallback; builders give the layers
of their kernels. Both keep their place in the graph of gradients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from paceline.workload.builders.layer_builders import LayerSpec
from paceline.workload.layers import Operation
from paceline.workload.tracing.autocast import autocast_key
from paceline.workload.tracing.operations import tensors_in

if TYPE_CHECKING:
    import torch
    from torch import nn

Build = Callable[[Any, tuple[Any, ...], Mapping[str, Any], int], list[LayerSpec] | None]
"""Function from a module, the arguments of its call and the number of samples to its layers; None: trace it."""
_INDEX = re.compile(r"(layer|block)_?(idx|id|number|index)|^(idx|training|_is_hf_initialized)$")
_LEAST = 3  # equal modules of a list that are worth it


@dataclass(frozen=True, slots=True)
class Builder:
    """Layers of a module that is not traced, and the form of its result.

    Attributes:
        pair: whether the module returns a tensor and a state, which is None in training.
        like: name of the argument whose shape the result has; empty: the first.
        saves: whether the module saves its inputs for the backward pass, norms in fp32. The trace counts each storage once, in
            place of what the layers keep.
    """

    build: Build
    pair: bool = False
    like: str = ""
    saves: bool = False


@dataclass
class Skipped:
    """Modules that one trace skips.

    Attributes:
        like: paths of repeated modules, with the path of the module that runs instead.
        layers: paths of modules with a builder, with their layers.
        sliding: modules with a sliding window, with its tokens.
        samples: samples of the running pass.
        turns: calls of each module with a builder in the running pass.
        tied: modules with a builder whose weights belong to a module before them.
        uneven: True if the first of equal blocks reads another type than the others, as it may under autocast. It
            then saves other tensors than they do.
    """

    like: dict[str, str] = field(default_factory=dict)
    layers: dict[str, list[LayerSpec]] = field(default_factory=dict)
    sliding: dict[str, int] = field(default_factory=dict)
    samples: int = 1
    turns: Counter[str] = field(default_factory=Counter)
    tied: set[str] = field(default_factory=set)
    uneven: bool = False
    builders: dict[str, Builder] = field(default_factory=dict)
    _made: dict[str, tuple[Any, list[Any], list[Any]]] = field(default_factory=dict)


_RUNNING: list[Skipped] = []


def running() -> Skipped | None:
    """Return what the running trace skips; None without one."""
    return _RUNNING[-1] if _RUNNING else None


@contextmanager
def skipping(
    model: nn.Module, builder: Callable[[nn.Module], Builder | None], *, repeats: bool = True, apart: int = 0
) -> Iterator[Skipped]:
    """Make modules of ``model`` skip their forward pass. Copies of the model skip too, inside this context.

    Args:
        builder: returns the builder of a module's layers; None: it is traced.
        repeats: whether equal blocks run once.
        apart: number of equal blocks that run in front of the one that the others copy.
    """
    plan = Skipped()
    seen: set[int] = set()
    for path, module in model.named_modules():
        module._place = path  # type: ignore[assignment]  # a copy keeps it
        build = builder(module)
        held = {id(parameter) for parameter in module.parameters(recurse=build is not None)}
        if build is not None and held & seen:
            plan.tied.add(path)
        seen |= held
        if build is not None:
            plan.builders[path] = build
            module._traced_forward = module.forward  # type: ignore[assignment]
            module.forward = MethodType(_built, module)  # type: ignore[method-assign]
    for path, repeated in _repeats(model) if repeats else ():
        repeated = repeated[apart:]
        if len(repeated) < 2 or path(first := repeated[0]) in plan.builders:
            continue
        first._traced_forward = first.forward  # type: ignore[assignment]
        first.forward = MethodType(_noted, first)  # type: ignore[method-assign]
        for other in repeated[1:]:
            plan.like[path(other)] = path(first)
            other._traced_forward = other.forward  # type: ignore[assignment]
            other.forward = MethodType(_repeated, other)  # type: ignore[method-assign]
    hook = model.register_forward_pre_hook(_count_samples, with_kwargs=True)
    _RUNNING.append(plan)
    try:
        yield plan
    finally:
        _RUNNING.pop()
        hook.remove()
        for module in model.modules():
            for name in ("forward", "_place", "_traced_forward"):
                module.__dict__.pop(name, None)


def _repeats(model: nn.Module) -> Iterator[tuple[Callable[[Any], str], list[Any]]]:
    """Yield equal modules of each list of modules, the outermost lists alone, in order."""
    import torch

    inside: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or any(path.startswith(f"{outer}.") for outer in inside):
            continue
        kinds: dict[Any, list[Any]] = {}
        for child in module:
            kinds.setdefault(_signature(child), []).append(child)
        if len(module) >= _LEAST and any(len(equal) > 1 for equal in kinds.values()):
            inside.append(path)
            for equal in kinds.values():
                if len(equal) > 1:
                    yield lambda child: str(child._place), equal


def _signature(module: nn.Module) -> Any:
    """Return what makes two modules do the same work: classes, plain attributes but the block's number, and shapes."""
    parts: list[Any] = []
    for path, own in module.named_modules():
        plain = tuple(
            (name, repr(value))
            for name, value in sorted(own.__dict__.items())
            if isinstance(value, int | float | str | bool | tuple | type(None)) and not _INDEX.search(name) and name != "_place"
        )
        held = tuple((name, tuple(p.shape), p.requires_grad) for name, p in own.named_parameters(recurse=False))
        buffers = tuple((name, tuple(b.shape)) for name, b in own.named_buffers(recurse=False))
        parts.append((path, type(own), plain, held, buffers))
    return tuple(parts)


def _count_samples(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    plan, first = running(), next(tensors_in([args, kwargs]), None)
    if plan is not None:
        plan.turns.clear()
        plan.samples = plan.samples if first is None else int(first.shape[0])


def _noted(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the module, and note the form of its result: each tensor as the argument that it is, or shape and type."""
    result = self._traced_forward(*args, **kwargs)
    plan = running()
    if plan is not None:
        given_tensors = list(tensors_in([args, kwargs]))
        given = {id(tensor): place for place, tensor in enumerate(given_tensors)}
        form = [given.get(id(t), _like(t)) for t in tensors_in(result)]
        plan._made[self._place] = result, form, list(given_tensors)
    return result


def _repeated(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a result of the form that the equal module before it gave. With inputs of other shapes it is no copy, and runs."""
    plan = running()
    assert plan is not None
    given = list(tensors_in([args, kwargs]))
    first = plan.like.get(self._place, "")
    before = plan._made[first][2] if first else []
    if not first or [t.shape for t in given] != [t.shape for t in before]:
        plan.like.pop(self._place, None)
        return self._traced_forward(*args, **kwargs)
    plan.uneven |= [t.dtype for t in given] != [t.dtype for t in before]
    result, form, _ = plan._made[first]
    new = [place for place in form if not isinstance(place, int)]
    made = iter(_opaque(new, given))
    tensors = [given[place] if isinstance(place, int) and place < len(given) else next(made) for place in form]
    return _refilled(result, {id(old): tensor for old, tensor in zip(tensors_in(result), tensors, strict=True)})


def _built(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a result like the first input, and note the layers of the module's builder."""
    import torch

    plan = running()
    own = plan.builders[self._place] if plan is not None else None
    layers = own.build(self, args, kwargs, plan.samples) if plan is not None and own is not None else None
    if plan is None or own is None or layers is None:
        return self._traced_forward(*args, **kwargs)
    plan.turns[self._place] += 1
    plan.layers[self._place] = [_times(layer, plan.turns[self._place]) for layer in layers]
    given = list(tensors_in([args, kwargs]))
    like = kwargs[own.like] if own.like else given[0]
    key = autocast_key()
    narrow = torch._C._dispatch_tls_is_dispatch_key_included(key) and not torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    kind, norm = like.dtype, layers[-1].kind.endswith("Norm")
    if narrow and layers[-1].kind not in _AS_GIVEN:
        kind = torch.float32 if norm else torch.bfloat16
    saved = [x.float() if norm else x for x in given if x.is_floating_point()] if own.saves else []
    saved += [x.new_empty(x.shape[:-1]) for x in saved if norm]  # of each row
    result = next(iter(_opaque([replace(_like(like), kind=kind)], given, saved)))
    return (result, None) if own.pair else result


def _times(layer: LayerSpec, turns: int) -> LayerSpec:
    """Return the work of a layer that runs ``turns`` times in a pass."""
    if turns == 1:
        return layer

    def each(o: Operation) -> Operation:
        work = {name: getattr(o, name) * turns for name in ("calls", "flops", "bytes", "fixed_bytes")}
        return replace(o, **work)

    operations = tuple(map(each, layer.operations))
    return replace(layer, operations=operations, kept=layer.kept * turns, kept_half=layer.kept_half * turns)


_AS_GIVEN = ("Activation", "GatedRMSNorm")
"""Kinds of modules whose result has the type of their input."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Shape, strides and type of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype


def _like(tensor: torch.Tensor) -> _Form:
    """Return the form of an element-wise result, which keeps the order of the dimensions in memory."""
    import torch

    return _Form(tuple(tensor.shape), torch.empty_like(tensor).stride(), tensor.dtype)


def _opaque(form: list[_Form], given: list[torch.Tensor], saved: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
    """Return new tensors of these forms, and save ``saved`` for the backward pass.

    Gradients pass through to all ``given`` tensors that need them.
    """
    import torch

    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
            ctx.shapes = [(x.shape, x.dtype) for x in inputs]
            ctx.save_for_backward(*saved)
            # written, so that the trace sees the module at its place in the order
            return tuple(inputs[0].new_empty_strided(f.shape, f.strides, dtype=f.kind).zero_() for f in form)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            like = next(g for g in gradients if g is not None)
            return tuple(like.new_zeros(shape, dtype=kind) for shape, kind in ctx.shapes)

    trained = [x for x in given if x.requires_grad] or given[:1]
    return list(Opaque.apply(*trained)) if form else []  # type: ignore[no-untyped-call]


def _refilled(value: Any, new: Mapping[int, Any]) -> Any:
    """Return the same structure with other tensors."""
    if id(value) in new:
        return new[id(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_refilled(part, new) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_refilled(part, new) for part in value)
    if isinstance(value, Mapping):
        return type(value)(**{key: _refilled(part, new) for key, part in value.items()})
    return value
