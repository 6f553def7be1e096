"""Find the structures of a module from its exported graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from paceline.array_types import Ints
from paceline.slimming.structures import rules_indexing  # noqa: F401  registers its rules
from paceline.slimming.structures.averages import averages_of
from paceline.slimming.structures.branches import Graph, branches_of
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.exported_graph import OPAQUE, exported_graph
from paceline.slimming.structures.given_tensors import arguments
from paceline.slimming.structures.kernels import NAMES, removable_pairs
from paceline.slimming.structures.rules import ELEMENTWISE, RULES, Ties
from paceline.slimming.structures.rules_recurrent import RECURRENT
from paceline.slimming.structures.rules_tried import tried
from paceline.slimming.structures.structures import (
    OUTPUT,
    PRODUCTS,
    Average,
    Labelled,
    Structures,
    Units,
    UnweightedStep,
    WeightedOperation,
    vector,
)

WEIGHTED = ("conv1d", "conv2d", "conv_transpose2d", "linear", "lstm", "gru", *PRODUCTS)
"""Operations that are timed separately."""
ACTIVATIONS = ("relu", "relu_", "relu6", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_", "sigmoid", "tanh", "hardsigmoid")
"""Operations that runtimes fuse with the convolution or matrix product before them; ``JOINED`` only after a convolution."""
JOINED = ("batch_norm", "add", "add_", "dropout", "detach", "contiguous", "clone")
CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")
"""Operations that only check a tensor."""
SIZELESS = ("linear", "index", "index_add", "index_add_", *ELEMENTWISE)
"""Operations whose rules hold for dimensions whose size depends on data, such as the tokens of an expert."""
CREATED = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "randn", "rand")
"""Operations that create a constant, or elements that are drawn one by one."""
EXPANDED = ("expand", "expand_as")
"""Operations that copy a tensor along dimensions of size 1."""
COPIES = ("lift_fresh_copy", "lift_fresh", "detach", "detach_", "clone", "alias", "to", "_to_copy")
"""Operations that return their operand."""
LAYERS = (
    *(nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention),
    *(nn.Embedding, nn.EmbeddingBag),
)
"""Modules whose weights determine the dimension of the width."""
FROZEN = "frozen, or tied to a frozen weight"
UNUSED = "the network does not use it on the example, in eval mode"
_ALONE = np.zeros(1, np.int64)
"""Unit of a dimension's only index, which stays."""


def structures_of(model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
    """Return the structures of a module that may be removed.

    Args:
        inputs: an example; dimensions of the batch and of time may have any other size later.

    Raises:
        UserError: as ``exported_graph``.
    """
    exported = exported_graph(model, inputs)
    forest, program = Units(), exported.program
    signature = program.graph_signature
    names: Mapping[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors_of = {node: names[node.name] for node in program.graph.nodes if node.name in names}
    graph = Graph(list(program.graph.nodes), tensors_of, _name, _place)
    pairs = removable_pairs(graph, model)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    alike: dict[int, tuple[Ints, ...]] = {}
    units: dict[str, tuple[Ints, ...]] = {}
    for name, tensor in tensors.items():  # tied weights have the same units
        if id(tensor) not in alike:
            alike[id(tensor)] = tuple(_units(forest, tuple(tensor.shape), pairs.get(name, ())))
        units[name] = alike[id(tensor)]
    found = Structures(forest, units, kernels=dict(_kernels(pairs)), constants=len(forest))
    _match_arguments(_walk(program, names, found, averages_of(graph)), found, model, inputs)
    found.kept.update(exported.opaque)
    for name, parameter in model.named_parameters():
        for of in units[name] if not parameter.requires_grad else ():
            forest.fix(of, FROZEN)
    used = {id(tensors[names[node.name]]) for node in program.graph.nodes if node.name in names and node.users}
    for name, tensor in tensors.items():
        unseen = [why for path, why in exported.opaque.items() if name.startswith(f"{path}.")]
        unseen += [UNUSED] * (id(tensor) not in used)
        for of in units[name] if unseen else ():
            forest.fix(of, unseen[0])
    found.widths.update(_widths(model, units))
    found.collect()
    found.branches = branches_of(graph, found, model)
    found.recurrent = frozenset(_recurrent(graph))
    return found


def _recurrent(graph: Graph) -> Iterator[str]:
    """Return weights that a state passes repeatedly: of recurrent operations, and of linear layers that read their output."""
    for node, name in graph.tensors.items():
        users = [user for user in node.users if user.op == "call_function"]
        steps = [user for user in users if graph.kind(user) == "linear" and user.args[1] is node]
        if any(graph.kind(user) in RECURRENT for user in users) or (len(steps) > 1 and graph.reaches(steps[0], steps[1])):
            yield name


def _units(forest: Units, shape: tuple[int, ...], pairs: tuple[int, ...]) -> Iterator[Ints]:
    """Return the units of each dimension; the last ones are a kernel's if it may lose pairs."""
    plain = len(shape) - len(pairs)
    for size in shape[:plain]:
        yield forest.new(size) if size > 1 else _ALONE
    for size, count in zip(shape[plain:], pairs, strict=True):
        outer = forest.new(count)
        yield np.concatenate([outer, np.zeros(size - 2 * count, np.int64), outer[::-1]])


def _kernels(pairs: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[tuple[str, int], str]]:
    """Return the structures of kernels (``Structures.kernels``)."""
    for name, each in pairs.items():
        for dim, what in enumerate(NAMES[len(each)], 2):
            yield (name, dim), f"{name.rpartition('.')[0]} {what}"


def _widths(model: nn.Module, units: Mapping[str, tuple[Ints, ...]]) -> Iterator[tuple[str, tuple[Ints, ...]]]:
    """Return the output units of each module with weights (``Structures.widths``)."""
    for path, module in model.named_modules():
        own = [name for name, each in module.named_parameters(path, recurse=False) if each.dim() > 1]
        if not own:
            continue
        inner = isinstance(module, nn.Embedding | nn.EmbeddingBag) or getattr(module, "transposed", False)
        which = slice(int(inner), inner + 1) if isinstance(module, LAYERS) else slice(None)
        yield path or type(model).__name__, tuple(each for name in own for each in units[name][which])


def _walk(
    program: torch.export.ExportedProgram, names: Mapping[str, str], found: Structures, averages: Mapping[fx.Node, Average]
) -> dict[tuple[str, fx.Node], Labelled]:
    """Tie units.

    Args:
        names: names of parameters and buffers, by those of their nodes.

    Returns:
        Tensors of ``_enters``, by the module that takes them.
    """
    ties = Ties(found.forest)
    values: dict[fx.Node, Any] = {}
    fusing: dict[fx.Node, str] = {}
    entering: dict[tuple[str, fx.Node], Labelled] = {}
    constant = _constants(program, names)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = _held(found, names[node.name]) if node.name in names else _given(node, program)
        elif node.op == "call_function":
            place = _place(node)
            own: dict[fx.Node, Any] = {}
            for each in node.all_input_nodes if "." in place else ():
                if each in constant and _enters(each, place):
                    if (place, each) not in entering:
                        entering[place, each] = _created(found, _shape(each) or (), last=-2)
                    own[each] = entering[place, each]
            given = {**values, **own} if own else values
            values[node] = _averaged(node, given, ties, found, averages) or _called(node, given, ties, found)
            if _name(node) == "_weight_norm":
                found.directions |= {(names.get(str(node.args[0]), ""), *(node.args[2:] or (0,)))}  # type: ignore[arg-type]
            if operation := _operation(node, names):
                found.operations.append(operation)
                if operation.kind != "conv_transpose2d":  # which no runtime fuses with a later operation
                    fusing[node] = operation.kind
            elif step := _step(node, values, fusing):
                found.steps.append(step)
        elif node.op == "get_attr":  # a graph inside, such as a branch of ``torch.cond``
            values[node] = None
        elif node.op == "output":
            for each in _tensors(_resolve(node.args, values)):
                if not each.layers:
                    ties.fix(each, OUTPUT)
    found.parts += ties.parts
    return entering


def _averaged(
    node: fx.Node, values: Mapping[fx.Node, Any], ties: Ties, found: Structures, averages: Mapping[fx.Node, Average]
) -> Labelled | None:
    """Return the result of a norm's mean over units that may go (``averages_of``), None for other operations.

    The units vary along the averaged dimension alone: those of heads, which vary along another one too, share their weight.
    """
    average = averages.get(node)
    if average is None:
        return None
    inputs: Labelled = values[node.all_input_nodes[0]]
    wide = {dim for each in inputs.fields for dim, size in enumerate(each.shape) if size > 1}
    if wide != {average.dim % len(inputs.shape)}:
        return None
    found.averages[average.weight] = average
    if _name(node) == "mean":
        return Labelled(_shape(node) or ())
    result: Labelled = RULES["mul"](ties, [inputs, *_tensors(_resolve(node.args[2:3], values))], inputs.shape)
    return result


def _constants(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> set[fx.Node]:
    """Return the operations that depend on no parameter or buffer, and on no input but whole numbers."""
    found: set[fx.Node] = set()
    whole: set[fx.Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            if node.name not in names and not (isinstance(value, Tensor) and value.is_floating_point()):
                whole.add(node)
        elif node.op == "call_function" and all(each in found or each in whole for each in node.all_input_nodes):
            found.add(node)
    return found


def _enters(node: fx.Node, place: str) -> bool:
    """Return whether a floating tensor comes from a module around this one, and may have an entry for each head.

    One from a layer before has that layer's heads, as the zeros that T5's first cross-attention passes on.
    """
    value = node.meta.get("val")
    made = _place(node)
    is_first = len(node.meta.get("nn_module_stack") or ()) <= 1  # in the forward of the whole network
    outside = made != place and (is_first or place.startswith(f"{made}."))
    wide = isinstance(value, Tensor) and value.is_floating_point() and any(size != 1 for size in value.shape[:-2])
    return outside and wide and not _is_unsized(node)


def _match_arguments(
    entering: Mapping[tuple[str, fx.Node], Labelled], found: Structures, model: nn.Module, inputs: tuple[Any, ...]
) -> None:
    """Find the arguments that tensors of ``_enters`` are (``Structures.entering``); others stay whole."""
    live = {key: each for key, each in entering.items() if any(found.forest.roots(one).any() for one in each.fields)}
    with eval_mode(model):
        given = arguments(model, inputs, list(dict.fromkeys(place for place, _ in live))) if live else {}
    for (place, _), each in live.items():
        named = [name for name, shape in given.get(place, {}).items() if shape == each.shape]
        if len(named) == len(each.fields) == 1:
            dim = next(dim for dim, size in enumerate(each.fields[0].shape) if size > 1)
            found.entering[place, named[0]] = dim, each.fields[0].ravel()
        else:
            for one in each.fields:
                found.forest.fix(one, "it is given as one of several tensors of a shape")


def _held(found: Structures, name: str) -> Labelled:
    """Label a parameter or buffer; no operation ties the removable rows of a kernel."""
    units = found.units[name]
    shape = tuple(len(of) for of in units)
    tied = (dim for dim, of in enumerate(units) if len(of) > 1 and (name, dim) not in found.kernels)
    return Labelled(shape, tuple(vector(units[dim], dim, len(shape)) for dim in tied))


def _created(found: Structures, shape: tuple[int, ...], last: int | None = None) -> Labelled:
    """Label a constant with new units: its elements are equal, so that any may be removed with what it is joined to.

    Args:
        last: end of the dimensions that are labelled.
    """
    wide = [dim for dim, size in enumerate(shape[:last]) if size > 1]
    return Labelled(shape, tuple(vector(found.forest.new(shape[dim]), dim, len(shape)) for dim in wide))


def _given(node: fx.Node, program: torch.export.ExportedProgram) -> Any:
    """Label an input, or a constant of the code; whole numbers keep their values."""
    plain = _plain(node)
    constant = program.constants.get(program.graph_signature.inputs_to_lifted_tensor_constants.get(node.name, ""))
    if isinstance(constant, Tensor) and not (constant.is_floating_point() or constant.is_complex()):
        return replace(plain, values=constant.detach().cpu().numpy().astype(np.int64))
    return plain


def _plain(node: fx.Node) -> Any:
    return _unlabelled(node.meta.get("val"))


def _unlabelled(value: Any) -> Any:
    """Label tensors that belong to no structure."""
    if isinstance(value, list | tuple):
        return [_unlabelled(each) for each in value]
    if isinstance(value, Tensor):
        return Labelled(tuple(size if isinstance(size, int) else 1 for size in value.shape))
    return value


def _called(node: fx.Node, values: Mapping[fx.Node, Any], ties: Ties, found: Structures) -> Any:
    if _name(node) in CHECKS:
        return None
    operands = _resolve(node.args, values)
    if node.target is operator.getitem:
        inside, index = operands
        return inside[index] if isinstance(inside, list) and index < len(inside) else _plain(node)
    name = _name(node)
    ties.name, ties.place = name, _place(node)
    shape = _shape(node)
    tensors = _tensors([*operands, *_resolve(list(node.kwargs.values()), values)])
    if name in RECURRENT:
        operands[1] = _resolve(_without_own_zeros(node.args[1], _place(node)), values)
    elif name != "select" and not _reorders(node):
        for each in tensors:
            if each.layers > 1:
                found.kept[_place(node)] = why = f"{name} takes the states of several layers as one tensor"
                ties.fix(each, why)
    if name in CREATED and shape is not None:
        return _created(found, shape)
    if not any(each.fields for each in tensors) and (name not in EXPANDED or not _is_float(node)):
        return tensors[0] if name in COPIES and tensors else _plain(node)
    unsized = name not in SIZELESS and any(_is_unsized(each) for each in (node, *node.all_input_nodes))
    if name == "mean" and any(_name(user) == "sub" and user.args[1] is node for user in node.users):
        ties.name = "a mean that is subtracted"
    if name in RULES and shape is not None and not unsized:
        return RULES[name](ties, operands, shape)
    if name not in (*RULES, OPAQUE) and not unsized and (found_by_trial := tried(node, tensors, ties)) is not None:
        return found_by_trial
    why = f"{name} has a size that depends on data" if unsized else f"the operation {name} has no rule"
    why = str(operands[-1]) if name == OPAQUE else why
    if any((each < found.constants).any() for tensor in tensors for each in tensor.fields):
        found.kept[_place(node)] = why
    for each in tensors:
        ties.fix(each, why)
    return _plain(node)


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _reorders(node: fx.Node) -> bool:
    """Return whether a recurrent module reorders the samples of its last state, as for packed sequences."""
    state = node.args[0]
    inside = isinstance(state, fx.Node) and state.target is operator.getitem and _place(state) == _place(node)
    return inside and _name(node) == "index_select" and bool(node.args[1] == 1)


def _name(node: fx.Node) -> str:
    """Return an operation's name without its library's. The one for packed sequences has other operands, so another name."""
    schema: Any = getattr(node.target, "_schema", None)
    name: str = getattr(schema, "name", f"::{getattr(node.target, '__name__', node.target)}").partition("::")[2]
    return f"{name} of packed sequences" if name in RECURRENT and schema.overload_name == "data" else name


def _without_own_zeros(state: Any, place: str) -> Any:
    """Return the given states of a recurrent module; None for states that the module creates in its width."""
    if isinstance(state, list | tuple):
        return [_without_own_zeros(each, place) for each in state]
    return None if isinstance(state, fx.Node) and _name(state) == "zeros" and _place(state) == place else state


def _operation(node: fx.Node, names: Mapping[str, str]) -> WeightedOperation | None:
    """Return an operation of ``WEIGHTED`` with its sizes; None for others."""
    kind, shape = _name(node), _shape(node)
    if kind not in WEIGHTED or shape is None or not isinstance(node.args[0], fx.Node):
        return None
    args: tuple[Any, ...] = (*node.args[1:3], node.args[0]) if kind == "addmm" else node.args
    flat = [each for arg in args[1:] for each in (arg if isinstance(arg, list | tuple) else [arg])]
    weights = tuple(names[each.name] for each in flat if isinstance(each, fx.Node) and each.name in names)
    entering = _shape(args[0])
    if kind in PRODUCTS and not _is_matrix(args[1], names):
        return None
    if kind not in RECURRENT and str(args[1]) not in names:  # made of parameters, as by a reshape
        return None
    settings = tuple(arg for arg in node.args[1:] if not _has_nodes(arg))
    grouped_transposed = kind == "conv_transpose2d" and node.args[6:7] not in ((), (1,))
    if not weights or entering is None or grouped_transposed:  # which stays whole
        return None
    return WeightedOperation(kind, weights, entering, shape, tuple(map(_hashable, settings)))


def _is_matrix(value: Any, names: Mapping[str, str]) -> bool:
    """Return whether an operand is a parameter of two dimensions."""
    return isinstance(value, fx.Node) and value.name in names and len(_shape(value) or ()) == 2


def _step(node: fx.Node, values: Mapping[fx.Node, Any], fusing: dict[fx.Node, str]) -> UnweightedStep | None:
    """Return an operation without weights; None if it only names a part of another's output.

    Args:
        fusing: by node, the weighted operation that it is fused with; a step that is fused is added.
    """
    output = next(iter(_tensors(values[node])), None)
    if node.target is operator.getitem or output is None:
        return None
    kind = _name(node)
    before = [each for each in node.all_input_nodes if each in fusing]
    after = fusing[before[0]] if before else ""
    joins = kind in ACTIVATIONS or (kind in JOINED and after.startswith("conv"))
    fused = bool(before) and joins and (after.startswith("conv") or len(output.shape) == 2)
    if fused:
        fusing[node] = after
    inputs = tuple(_tensors(_resolve(node.args, values)))
    return UnweightedStep(kind, inputs, output, tuple(_hashable(arg) for arg in node.args if not _has_nodes(arg)), fused)


def _has_nodes(value: Any) -> bool:
    return isinstance(value, fx.Node) or (isinstance(value, list | tuple) and any(map(_has_nodes, value)))


def _hashable(value: Any) -> object:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of the (first) result. A size that depends on data is 1."""
    found = _tensors(_plain(node))
    return found[0].shape if found else None


def _is_unsized(node: fx.Node) -> bool:
    """Return whether a size of its result depends on data."""
    values = node.meta.get("val")
    tensors = [each for each in (values if isinstance(values, list | tuple) else [values]) if isinstance(each, Tensor)]
    return not all(isinstance(size, int) for each in tensors for size in each.shape)


def _place(node: fx.Node) -> str:
    """Return the module whose forward contains an operation."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return path.removeprefix("L['self'].") or node.name


def _resolve(value: Any, values: Mapping[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, list | tuple):
        return [_resolve(each, values) for each in value]
    return value


def _tensors(value: Any) -> list[Labelled]:
    if isinstance(value, Labelled):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [found for each in value for found in _tensors(each)]
    return []
