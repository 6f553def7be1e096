"""Tracing of a network into its layer table: steps on the meta device, with two and with four samples, without arithmetic.

Two steps count the work at fp32. Two more under 16-bit autocast count the saved bytes, and what casts and fp32 kernels move.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.workload.factory import describe_error
from paceline.workload.layers import Coverage, Grows, Layer, LayerTable, Operation, OperationKind, Parameter
from paceline.workload.tracing.operations import Kernel, Shape, tensors_in
from paceline.workload.tracing.recorder import LOSS, ModuleRecord, Recorder
from paceline.workload.tracing.trace_error import PROVIDE, stopped

if TYPE_CHECKING:
    import torch
    from torch import nn

Loss = str | Callable[[Any], Any]
_SMALL, _LARGE = 2, 4  # batch sizes; any two above 1, as a batch of one can use other kernels


def trace(
    model: nn.Module | Callable[[], Any],
    inputs: Any = None,
    *,
    name: str = "",
    sample: str = "",
    source: str = "",
    loss: Loss = "mean",
    casts: bool = False,
) -> LayerTable:
    """Return the layer table of one training step of ``model``.

    FLOPs are those of matrix products, convolutions and attention (a multiply-add is two), as in publications. Other known
    operations count bytes only. A table per sample cannot express FLOPs that are not proportional to the batch; these are in
    ``coverage.unknown``, as are operations without a formula.

    Args:
        model: a module, which does not change, or a function that returns one, or one with a batch of inputs.
        inputs: a tensor, a tuple or a dict of arguments, batch first. None: those of the function, or the module's
            ``example_input`` or ``dummy_inputs``. Values and batch size do not matter.
        name: name of the workload; empty means the name of the class.
        sample: description of one sample; empty: the shape of the input.
        source: publication or ``module:function``.
        loss: ``cross_entropy`` (of logits against a class for each row), ``mean`` (of the output, or its ``loss``
            attribute if it has one), or a function of the model's output.
        casts: count the casts of 16-bit autocast, and what its fp32 kernels move beyond 16 bits.

    Raises:
        UserError: no inputs, nothing to train, a lazy layer without shapes, control flow by values, or a failing forward pass.
    """
    module, given = _on_meta(model, name or getattr(model, "__name__", "the function"))
    inputs = given if inputs is None else inputs
    if inputs is None or not list(tensors_in(inputs)):
        raise UserError(f"no example input for {name or type(module).__name__}", PROVIDE)
    small, large = (_step(module, _batch(inputs, size), loss, name) for size in (_SMALL, _LARGE))
    paths = _paths(small)
    if set(paths) != set(_paths(large)):
        raise UserError("the modules called depend on the batch size; a layer table has no place for that")
    tensors = list(tensors_in(_batch(inputs, 1)))
    half = _under_autocast(module, inputs, loss, paths, casts) or {}
    return LayerTable(
        name=name or type(module).__name__,
        layers=tuple(
            _layer(path, small.kinds[path], small.work[path], large.work[path], half.get(path), casts) for path in paths
        ),
        parameters=_parameters(module, small, paths),
        input_bytes=float(sum(t.numel() * t.dtype.itemsize for t in tensors)),
        sample=sample or _one_of(tensors),
        source=source,
        coverage=_coverage(small, large),
        frozen=sum(p.numel() for p in module.parameters() if not p.requires_grad),
    )


def _on_meta(model: nn.Module | Callable[[], Any], name: str) -> tuple[nn.Module, Any]:
    """Return a copy of the network on the meta device in training mode, and its inputs."""
    import torch

    inputs: Any = None
    built: Any = model
    if not isinstance(model, torch.nn.Module):
        try:
            with torch.device("meta"):
                built = model()
        except (Exception, SystemExit):  # a function may do on the CPU what the meta device cannot
            try:
                built = model()
            except (Exception, SystemExit) as error:
                raise UserError(f"building {name} fails: {describe_error(error)}") from error
        if isinstance(built, tuple) and len(built) == 2:
            built, inputs = built
        if not isinstance(built, torch.nn.Module):
            raise UserError(f"{name} returned {type(built).__name__}, not an nn.Module", PROVIDE)
    _check_shaped(built, name)
    # Its tensors are replaced before the copy, so ties survive and nothing large is copied.
    memo: dict[int, Any] = {}
    for parameter in built.parameters():
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in built.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    for given in ("example_input", "dummy_inputs"):  # the second is that of transformers
        inputs = getattr(built, given, None) if inputs is None else inputs
    module = copy.deepcopy(built, memo)
    return module.train(), inputs


def _check_shaped(module: nn.Module, name: str) -> None:
    """Refuse a lazy layer that has not seen an input, because its parameters, and so their bytes, are unknown."""
    from torch.nn.parameter import is_lazy

    for path, layer in module.named_modules():
        if any(is_lazy(tensor) for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            at = f"layer {path}" if path else "the module itself"
            raise UserError(
                f"{name}: {at} ({type(layer).__name__}) has no shape until a first forward pass",
                "run the module on an example batch before it is returned",
            )


def _one_of(tensors: list[torch.Tensor]) -> str:
    """Describe one sample. Integers in one row are tokens, as are several such rows of equal length."""
    shapes = {tuple(t.shape[1:]) for t in tensors}
    if len(shapes) == 1 and len(next(iter(shapes))) == 1 and not any(t.is_floating_point() for t in tensors):
        return f"sequence of {next(iter(shapes))[0]} tokens"
    return ", ".join("tensor " + "x".join(map(str, t.shape[1:])) for t in tensors)


def _batch(inputs: Any, size: int) -> Any:
    """Return the same structure with ``size`` samples, on the meta device."""
    if isinstance(inputs, Mapping):
        return {key: _batch(value, size) for key, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return tuple(_batch(value, size) for value in inputs)
    if not hasattr(inputs, "untyped_storage"):
        return inputs
    if inputs.dim() == 0:
        raise UserError("an example input has no dimensions", "the first dimension of each tensor is the batch")
    return inputs.new_empty((size, *inputs.shape[1:]), device="meta")


def _call(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


_Pair = tuple[ModuleRecord, ModuleRecord]
"""Records of a module in the small and in the large batch."""


def _under_autocast(module: nn.Module, inputs: Any, loss: Loss, paths: list[str], casts: bool) -> dict[str, _Pair] | None:
    """Return the records of each module under 16-bit autocast; None if the network does not run under it."""
    import torch

    sizes = []
    try:
        for batch in (_batch(inputs, size) for size in (_SMALL, _LARGE)):
            recorder = Recorder(module)
            with torch.device("meta"), torch.enable_grad():
                recorder.save(lambda batch=batch: _call(module, batch), lambda output: _loss(output, loss), casts)  # type: ignore[misc]
            module.zero_grad(set_to_none=True)  # or the next backward pass would add to these gradients
            sizes.append(recorder.work)
    except Exception:
        return None
    finally:
        module.zero_grad(set_to_none=True)
    small, large = sizes
    if not {path for work in sizes for path, record in work.items() if record.saved} <= set(paths):
        return None  # a module that only casts is no layer
    return {path: (small[path], large[path]) for path in paths}


def _step(module: nn.Module, inputs: Any, loss: Loss, name: str) -> Recorder:
    import torch

    recorder = Recorder(module)
    try:
        with torch.device("meta"), torch.enable_grad():
            recorder.run(lambda: _call(module, inputs), lambda output: _loss(output, loss))
    except UserError:
        raise
    except Exception as error:
        raise stopped(error, recorder, name or type(module).__name__) from error
    finally:
        module.zero_grad(set_to_none=True)
    return recorder


def _loss(output: Any, loss: Loss) -> torch.Tensor:
    import torch

    if callable(loss):
        result: torch.Tensor = loss(output)
        return result
    if loss == "cross_entropy":
        logits = output.flatten(0, -2)
        return torch.nn.functional.cross_entropy(logits, torch.empty(logits.shape[0], dtype=torch.int64))
    if loss != "mean":
        raise UserError(f"unknown loss {loss!r}; legal: cross_entropy, mean", "or give a function of the model's output")
    own = getattr(output, "loss", None)
    parts = [own] if own is not None else [t.mean() for t in tensors_in(output) if t.is_floating_point()]
    if not parts:
        raise UserError("the model returns no floating tensor to train on", "give loss=, a function of its output")
    total: torch.Tensor = sum(parts[1:], start=parts[0])
    return total


def _paths(record: Recorder) -> list[str]:
    """Return the modules with operations, in the order of their first one; the loss is last."""
    return sorted(record.work, key=lambda path: path == LOSS)


def _line(small: float, large: float) -> tuple[float, float]:
    """Return (fixed, per sample) of the line through both batches; the fixed part is 0 if it would be negative."""
    slope = (large - small) / (_LARGE - _SMALL)
    fixed = small - slope * _SMALL
    return (fixed, slope) if fixed >= 0 and slope >= 0 else (0.0, large / _LARGE)


def _layer(path: str, kind: str, small: ModuleRecord, large: ModuleRecord, half: _Pair | None, casts: bool) -> Layer:
    passes = [_operations(small.kernels[i], large.kernels[i], backward=i == 1) for i in (0, 1)]
    if half is not None and casts:
        passes = [[*passes[i], *_casts(small, large, half, i)] for i in (0, 1)]
    return Layer(
        name=path,
        kind=kind,
        operations=tuple(operation for operations in passes for operation in operations),
        activation_bytes=_line(small.saved, large.saved)[1],
        activation_bytes_half=None if half is None else _line(half[0].saved, half[1].saved)[1],
    )


def _casts(small: ModuleRecord, large: ModuleRecord, half: _Pair, phase: int) -> list[Operation]:
    """Return what autocast adds to a module's memory-bound kernels; empty if nothing.

    Bytes are beyond those of the same kernels in 16 bits. They count at fp32, as all bytes of a table, so twice.
    """
    streams = [[kernel for kernel in record.kernels[phase] if kernel.kind == "memory"] for record in (small, large)]
    more = [2 * of.streamed[phase][1] - sum(k.bytes for k in own) for of, own in zip(half, streams, strict=True)]
    calls = max(0, round(half[0].streamed[phase][0]) - len(streams[0]))
    if min(more) <= 0:
        return []
    fixed, moved = _line(*more)
    return [Operation(kind="memory", backward=phase == 1, calls=calls, bytes=moved, fixed_bytes=fixed, autocast=True)]


def _operations(small: list[Kernel], large: list[Kernel], *, backward: bool) -> list[Operation]:
    """Return one operation for each shape, in the order of first use, then one for all memory-bound kernels."""
    if [kernel.kind for kernel in small] == [kernel.kind for kernel in large]:
        keys = [_key(a, b) for a, b in zip(small, large, strict=True)]
        sides = keys, keys
    else:  # for example one kernel per sample: each kind counts in total, as if it had one shape
        first = {kernel.kind: _key(kernel, kernel) for kernel in reversed(small + large)}
        sides = [first[kernel.kind] for kernel in small], [first[kernel.kind] for kernel in large]
    groups: dict[_Key, tuple[list[Kernel], list[Kernel]]] = {}
    for i, (side, kernels) in enumerate(zip(sides, (small, large), strict=True)):
        for key, kernel in zip(side, kernels, strict=True):
            groups.setdefault(key, ([], []))[i].append(kernel)
    result = []
    for key in sorted(groups, key=lambda key: key[0] == "memory"):
        kind, (batch, m, n, k), grows, window, causal = key
        few, many = groups[key]
        fixed, moved = _line(sum(kernel.bytes for kernel in few), sum(kernel.bytes for kernel in many))
        flops = _line(*(sum(kernel.flops or 0.0 for kernel in side) for side in (few, many)))[1]
        work: dict[str, Any] = {"flops": flops, "bytes": moved, "fixed_bytes": fixed}
        sizes: dict[str, Any] = {"m": m, "n": n, "k": k, "batch": batch, "grows": grows, "window": window, "causal": causal}
        result.append(Operation(kind=kind, backward=backward, calls=len(few), **work, **sizes))
    return result


_Key = tuple[OperationKind, Shape, Grows, int, bool]


def _key(small: Kernel, large: Kernel) -> _Key:
    """Return kind, shape for one sample, the dimension that grows with the batch, window, and whether it is causal.

    A kernel whose work does not grow with the batch counts as memory-bound.
    """
    if small.kind == "memory" or (small is not large and small.flops == large.flops):
        return "memory", (0.0, 0.0, 0.0, 0.0), "", 1, False
    same = [a == b for a, b in zip(small.shape, large.shape, strict=True)]
    batch, m, n, k = (float(a) if keeps else b / _LARGE for a, b, keeps in zip(small.shape, large.shape, same, strict=True))
    if same == [True, True, False, True]:  # columns: the transposed product
        return small.kind, (batch, n, m, k), "m", small.window, small.causal
    grows: Grows = "batch" if not same[0] else "m" if not same[1] else "k" if not same[3] else ""
    return small.kind, (batch, m, n, k), grows, small.window, small.causal


def _parameters(module: nn.Module, record: Recorder, paths: list[str]) -> tuple[Parameter, ...]:
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    # A parameter that the loss does not reach gets no gradient, so it comes last.
    order = record.ready + [name for name, _ in trained if name not in set(record.ready)]
    ready = {name: place for place, name in enumerate(order)}
    index = {path: i for i, path in enumerate(paths)}
    return tuple(Parameter(name=n, shape=tuple(p.shape), layer=index[record.owner(n)], ready=ready[n]) for n, p in trained)


def _coverage(small: Recorder, large: Recorder) -> Coverage:
    unknown: dict[str, int] = {}
    for (path, name), calls in sorted(small.calls.items()):
        flops = small.flops.get((path, name))
        if flops is None:
            unknown[name] = unknown.get(name, 0) + calls
        elif large.flops.get((path, name), 0.0) * _SMALL != flops * _LARGE:
            label = f"{name} (not in proportion to the batch)"
            unknown[label] = unknown.get(label, 0) + calls
    ops = small.calls.total()
    return Coverage(ops=ops, known=ops - sum(unknown.values()), unknown=unknown)
