"""Export of the graph of a network. A module that cannot be exported is one operation, so that the rest stays visible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from paceline.errors import UserError
from paceline.slimming.export.export_failure import ExportFailure, named
from paceline.slimming.export.exporting import silent
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.packed_sequences import full_length

OPAQUE = "opaque"
"""Operation of a module that cannot be exported. Its last operand is the reason."""
PLAIN = (Tensor, type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Legal inputs of an opaque module: other types could hide a tensor."""
REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operations by which the exporter runs a block such as ``torch.no_grad()``. Each has an inner graph."""
NEXT = "rewrite that line without choices by data, or move it to a separate module, which stays whole"
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ExportedGraph:
    """A network's graph.

    Attributes:
        opaque: why the modules of these names cannot be exported.
    """

    program: torch.export.ExportedProgram
    opaque: Mapping[str, str]


def exported_graph(model: nn.Module, inputs: tuple[Any, ...]) -> ExportedGraph:
    """Export a network in eval mode. The smallest modules that cannot be exported become one operation each.

    Such a module takes and returns tensors. If it returns another type, the code around it may branch on it, so the enclosing
    module is the operation.

    Raises:
        UserError: the network cannot be exported or does not run, with the operation and its line.
    """
    opaque: dict[str, _StandIn] = {}
    with eval_mode(model), silent():
        while True:
            try:
                with _forwards(model, opaque):
                    program = _exported(model, inputs)
                _inline_regions(program.graph_module)
                return ExportedGraph(program, {path: each.why for path, each in opaque.items()})
            except Exception as error:  # a module may raise anything
                failure = ExportFailure.of(error, model)
                if failure.paths and failure.paths[0] in opaque:  # called with other shapes than recorded
                    failure = replace(opaque[failure.paths[0]].failure, paths=failure.paths[1:])
                found = _opaque(model, inputs, failure)
                if found is None:
                    raise UserError(failure.refusal("cannot be traced"), NEXT) from error
                path, stand_in = found
                opaque = {name: each for name, each in opaque.items() if not name.startswith(f"{path}.")} | {path: stand_in}


def _exported(model: nn.Module, inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """Export in the two ways of ``torch.onnx``: Python runs the network, or PyTorch reads its bytecode.

    A network with packed sequences is exported as if all of them had the full length: its ties are the same.
    """
    try:
        return torch.export.export(model, inputs)
    except Exception:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            with contextlib.suppress(Exception), full_length():
                return torch.export.export(model, inputs)
        with contextlib.suppress(Exception):
            return torch.export.export(model, inputs, strict=True)
        raise  # the first error names its line


def _inline_regions(module: fx.GraphModule) -> None:
    """Move the operations of ``REGIONS`` to the graph around them."""
    graph = module.graph
    for node in [each for each in graph.nodes if getattr(each.target, "__name__", "") in REGIONS]:
        place = next(place for place, each in enumerate(node.args) if isinstance(each, fx.Node) and each.op == "get_attr")
        region = getattr(module, node.args[place].target)
        _inline_regions(region)
        if any(each.op == "get_attr" for each in region.graph.nodes):  # an operation in it has an inner graph too
            continue
        inputs = (each for each in region.graph.nodes if each.op == "placeholder")
        given: dict[fx.Node, Any] = dict(zip(inputs, node.args[place + 1 :], strict=True))
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(region.graph, given)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _opaque(model: nn.Module, inputs: tuple[Any, ...], failure: ExportFailure) -> tuple[str, _StandIn] | None:
    """Return the name of the innermost running module that can be one operation, or None."""
    recorders = {path: _Recorder(model.get_submodule(path).forward) for path in failure.paths if path}
    try:
        with _forwards(model, recorders), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*inputs)
    except Exception as error:
        refusal = ExportFailure.of(error, model).refusal("does not run on the example")
        raise UserError(refusal, "give inputs of the kinds and shapes that it takes") from error
    for path, recorder in recorders.items():
        if recorder.results and not recorder.hides:
            return path, _StandIn(recorder.results, f"{named(model, path)} cannot be traced: {failure.line}", failure)
    return None


@contextmanager
def _forwards(model: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forwards of the modules of these names in the block."""
    own = {path: vars(model.get_submodule(path)) for path in forwards}
    before = {path: attributes["forward"] for path, attributes in own.items() if "forward" in attributes}
    try:
        for path, attributes in own.items():
            attributes["forward"] = forwards[path]
        yield
    finally:
        for path, attributes in own.items():
            attributes.pop("forward")
            attributes.update({"forward": before[path]} if path in before else {})


class _Recorder:
    """A module's forward that records its outputs.

    Attributes:
        results: by input shapes.
        hides: an input may hide a tensor, or an output is no tensor.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self.results: dict[Shapes, Any] = {}
        self.hides = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = tree_leaves((args, kwargs))
        shapes = _shapes(given)
        result = self._forward(*args, **kwargs)
        leaves = tree_leaves(result)
        self.hides |= not all(isinstance(each, PLAIN) for each in given)
        self.hides |= not all(isinstance(each, Tensor | None) for each in leaves)
        self.results.setdefault(shapes, result)
        return result


class _StandIn:
    """Replacement of a module's forward: one operation on its tensors.

    Attributes:
        why: reason why the module cannot be exported. ``failure``: failure of the exporter.
    """

    def __init__(self, results: Mapping[Shapes, Any], why: str, failure: ExportFailure) -> None:
        self._results, self.why, self.failure = results, why, failure

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = tree_leaves((args, kwargs))
        leaves, spec = tree_flatten(self._results[_shapes(given)])
        like = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in leaves if each is not None]
        made = iter(opaque([each for each in given if isinstance(each, Tensor)], like, self.why))
        return tree_unflatten([None if each is None else next(made) for each in leaves], spec)


def _shapes(leaves: list[Any]) -> Shapes:
    return tuple(tuple(map(int, each.shape)) for each in leaves if isinstance(each, Tensor))


@torch.library.custom_op(f"paceline::{OPAQUE}", mutates_args=())
def opaque(given: list[Tensor], like: list[Tensor], why: str) -> list[Tensor]:
    """Return tensors of the shapes of others that seem to depend on the operands. It only occurs in graphs and never runs."""
    return [torch.empty_like(each) for each in like]


@opaque.register_fake
def _(given: list[Tensor], like: list[Tensor], why: str) -> list[Tensor]:
    return [torch.empty_like(each) for each in like]
