"""Rules by which operations of an exported graph tie units. Operands of an operation without a rule stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from paceline.array_types import Ints
from paceline.slimming.structures.structures import Field, Labelled, Units, compressed, vector

Rule = Callable[["Ties", Sequence[Any], tuple[int, ...]], Any]
"""Rule that returns the labelled result from the forest, the operands (tensors as ``Labelled``) and the shape of the result."""
RULES: dict[str, Rule] = {}
ELEMENTWISE = (
    *("relu", "relu_", "relu6", "gelu", "silu", "silu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "hardtanh", "hardtanh_"),
    *("hardswish", "hardswish_", "hardsigmoid", "elu", "leaky_relu", "leaky_relu_", "mish", "softplus", "dropout", "dropout_"),
    *("feature_dropout", "clone", "contiguous", "detach", "detach_", "alias", "to", "_to_copy", "where", "masked_fill"),
    *("masked_fill_", "add", "add_", "sub", "mul", "mul_", "div", "div_", "neg", "pow", "sqrt", "rsqrt", "exp", "clamp", "abs"),
    *(
        "square",
        "sin",
        "cos",
        "log",
        "log1p",
        "expm1",
        "reciprocal",
        "type_as",
        "zeros_like",
        "bitwise_and",
        "where",
        "erf",
        "addcmul",
        "addcdiv",
        "lerp",
    ),
    *("rsub", "maximum", "minimum", "log_sigmoid", "softsign", "logaddexp", "float", "threshold", "copy_"),
    *(
        "bitwise_not",
        "logical_not",
        "logical_and",
        "ne",
        "eq",
        "lt",
        "le",
        "gt",
        "ge",
        "isinf",
        "isnan",
        "sign",
        "floor",
        "round",
    ),
)
"""Elementwise operations with broadcasting. Mapping zero to another value is harmless: the next layer has no such input."""
POOLS = (
    *("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "max_pool2d", "max_pool2d_with_indices", "avg_pool2d"),
    *("adaptive_avg_pool2d", "adaptive_max_pool2d", "max_pool3d", "avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d"),
)
_FIXED = np.zeros(1, np.int64)
_ALIGNED = 8
"""Elements of two bytes in the 16 bytes to which grouped matrix products align rows (``torch._grouped_mm``)."""


class Ties:
    """Ties units as operations require.

    Attributes:
        name: name of the current operation, for reasons. ``place``: its module.
        parts: units of the parts of splits into stated sizes, by the module that splits.
    """

    def __init__(self, forest: Units) -> None:
        self.forest = forest
        self.name = self.place = ""
        self.parts: list[tuple[str, tuple[Ints, ...]]] = []

    def fix(self, tensor: Labelled, why: str = "") -> None:
        """Keep a whole tensor."""
        for one in tensor.fields:
            self.forest.fix(one, why or f"{self.name} needs it whole")

    def whole(self, tensor: Labelled, dims: Iterable[int], why: str = "") -> Labelled:
        """Return the tensor with some dimensions whole.

        Units that vary along these dimensions alone stay. Those that vary along another one too, such as the elements of
        attention heads, go together along the whole dimensions.
        """
        fields = []
        whole = tuple({dim % len(tensor.shape) for dim in dims})
        for one in tensor.fields:
            if all(one.shape[dim] == 1 for dim in whole):
                fields.append(one)
                continue
            first = one[tuple(slice(0, 1) if dim in whole else slice(None) for dim in range(one.ndim))]
            if first.size == 1:
                self.forest.fix(one, why or f"{self.name} needs it whole")
            else:
                self.forest.tie(one, first)
                fields.append(np.ascontiguousarray(first))
        return Labelled(tensor.shape, tuple(fields), tensor.layers)

    def vector_of(self, tensor: Labelled, dim: int) -> Ints:
        """Return the units of a dimension. If they depend on another dimension too, each index becomes one unit."""
        dim %= len(tensor.shape)
        found: Ints | None = None
        for one in tensor.fields:
            if one.shape[dim] == 1:
                continue
            lines = np.moveaxis(one, dim, 0).reshape(one.shape[dim], -1)
            if lines.shape[1] > 1:
                self.forest.tie(lines, lines[:, :1])
            units = lines[:, 0]
            if found is not None:
                self.forest.tie(found, units)
            found = units
        return np.zeros(tensor.shape[dim], np.int64) if found is None else found

    def without_joints(self, tensor: Labelled) -> Labelled:
        """Return the tensor with each field reduced to its first dimension."""
        fields = []
        for one in tensor.fields:
            wide = [dim for dim, size in enumerate(one.shape) if size > 1]
            if wide:
                units = self.vector_of(Labelled(tensor.shape, (one,)), wide[0])
                fields.append(vector(units, wide[0], len(tensor.shape)))
        return Labelled(tensor.shape, tuple(fields))

    def tie(self, left: Ints, right: Ints) -> None:
        """Tie two dimensions of equal length."""
        self.forest.tie(left, right)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations of ATen."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


@rule(*ELEMENTWISE)
def elementwise(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie both sides: units are removed on both or, if one side has no such units, kept."""
    tensors = [operand for operand in operands if isinstance(operand, Labelled) and operand.shape]
    rank = len(shape)
    fields: list[Field] = []
    for tensor in tensors:
        for one in tensor.fields:
            padded = one.reshape((1,) * (rank - one.ndim) + one.shape)
            merge_field(ties, fields, padded)
    result = Labelled(shape, tuple(fields))
    for tensor in tensors:
        result = _with_whole(ties, result, tensor)
    return result


def merge_field(ties: Ties, fields: list[Field], new: Field) -> None:
    """Merge a field with the one that varies along the same dimension, or append it.

    A factor for each element of an attention head, such as a rotation or a norm's scale, stays whole, so that heads go whole.
    """
    for index, one in enumerate(fields):
        if one.size == new.size == 1:
            ties.tie(one, new)
            return
        wide, others = _wide(ties, one), _wide(ties, new)
        if not wide & others:
            continue
        joint, factor = (new, one) if wide < others else (one, new)
        if (wide < others or others < wide) and factor.shape[max(wide | others)] > 1:
            ties.forest.fix(factor, f"{ties.name} scales the elements of a head")
            fields[index] = ties.whole(Labelled(joint.shape, (joint,)), wide & others).fields[0]
        else:
            ties.forest.tie(one, new)
            fields[index] = np.array(np.broadcast_arrays(one, new)[0]) if new.size > one.size else one
        return
    fields.append(new)


def _wide(ties: Ties, units: Field) -> set[int]:
    """Return the dimensions along which a field varies, as far as units are tied so far."""
    wide = {dim for dim, size in enumerate(units.shape) if size > 1}
    if len(wide) > 1 and (roots := ties.forest.roots(units)).any():
        wide = {dim for dim, size in enumerate(compressed(roots).shape) if size > 1} or wide
    return wide


def _with_whole(ties: Ties, result: Labelled, tensor: Labelled) -> Labelled:
    """Keep dimensions for which an operand has a fixed size: it cannot shrink with the others."""
    offset = len(result.shape) - len(tensor.shape)
    fixed = (dim for dim, size in enumerate(tensor.shape) if size > 1 and all(one.shape[dim] == 1 for one in tensor.fields))
    return ties.whole(result, [dim + offset for dim in fixed], f"{ties.name} adds what has a fixed size")


@rule(*POOLS)
def pooled(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the units of channels in pooling."""
    channels = ties.vector_of(operands[0], 1)
    return Labelled(shape, (vector(channels, 1, len(shape)),))


@rule("conv1d", "conv2d", "conv3d", "convolution")
def convolution(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie a convolution's input channels to the weight's second dimension, and its outputs to the first. Groups go whole."""
    inputs, weight, bias = operands[0], operands[1], operands[2] if len(operands) > 2 else None
    groups = inputs.shape[1] // weight.shape[1]
    channels, out, into = ties.vector_of(inputs, 1), ties.vector_of(weight, 0), ties.vector_of(weight, 1)
    weight = ties.whole(weight, range(2, len(weight.shape)), "the size of a kernel")
    if groups == 1:
        ties.tie(channels, into)
    elif weight.shape[1] == 1 and len(out) == len(channels):  # depthwise
        ties.tie(channels, out)
        ties.forest.fix(into, "depthwise")
    else:
        for of in (channels, out):
            lines = of.reshape(groups, -1)
            ties.tie(lines, lines[:, :1])
        ties.tie(channels.reshape(groups, -1)[:, 0], out.reshape(groups, -1)[:, 0])
        ties.forest.fix(into, "inside a group")
    if isinstance(bias, Labelled):
        ties.tie(ties.vector_of(bias, 0), out)
    return Labelled(shape, (vector(out, 1, len(shape)),))


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie units of a transposed convolution, whose weight is (inputs, outputs, ...). A grouped one stays whole."""
    inputs, weight, bias = operands[0], operands[1], operands[2] if len(operands) > 2 else None
    if shape[1] != weight.shape[1]:
        for tensor in (inputs, weight, bias):
            if isinstance(tensor, Labelled):
                ties.fix(tensor)
        return Labelled(shape)
    weight = ties.whole(weight, range(2, len(weight.shape)), "the size of a kernel")
    ties.tie(ties.vector_of(inputs, 1), ties.vector_of(weight, 0))
    out = ties.vector_of(weight, 1)
    if isinstance(bias, Labelled):
        ties.tie(ties.vector_of(bias, 0), out)
    return Labelled(shape, (vector(out, 1, len(shape)),))


@rule("linear")
def linear(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the last dimension of a linear layer's input to the weight's second dimension, and its outputs to the first."""
    inputs, weight, bias = operands[0], operands[1], operands[2] if len(operands) > 2 else None
    ties.tie(ties.vector_of(inputs, -1), ties.vector_of(weight, 1))
    out = ties.vector_of(weight, 0)
    if isinstance(bias, Labelled):
        ties.tie(ties.vector_of(bias, 0), out)
    kept = tuple(one for one in inputs.fields if one.shape[-1] == 1)
    return Labelled(shape, (*kept, vector(out, -1, len(shape))))


@rule("addmm", "baddbmm")
def added_product(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie a product as ``product``, and its result to the added tensor."""
    added, left, right = operands[:3]
    result: Labelled = elementwise(ties, (added, product(ties, (left, right), shape)), shape)
    return result


@rule("matmul", "bmm", "mm")
def product(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the summed dimensions of a matrix product; the others keep their units."""
    left, right = (ties.without_joints(operand) for operand in operands[:2])
    ties.tie(ties.vector_of(left, -1), ties.vector_of(right, -2 if len(right.shape) > 1 else -1))
    rank = len(shape)
    rows = ties.vector_of(left, -2) if len(left.shape) > 1 else _FIXED
    columns = ties.vector_of(right, -1) if len(right.shape) > 1 else _FIXED
    fields: list[Field] = [vector(rows, -2, rank)] * (len(rows) > 1) + [vector(columns, -1, rank)] * (len(columns) > 1)
    for tensor in (left, right):
        for one in tensor.fields:
            if one.ndim > 2 and one.shape[-1] == one.shape[-2] == 1:
                merge_field(ties, fields, one.reshape((1,) * (rank - one.ndim) + one.shape))
    return Labelled(shape, tuple(fields))


@rule("scaled_dot_product_attention")
def attention(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the heads of attention (..., heads, tokens, width), one structure each. The scale depends on a head's width."""
    rank = len(shape)
    heads: Ints | None = None
    for tensor in operands[:3]:
        units = ties.vector_of(ties.whole(tensor, [-1], "the width of a head"), -3) if rank > 3 else _FIXED
        if heads is None:
            heads = units
        elif len(units) == len(heads):
            ties.tie(heads, units)
        elif len(units) > 1:  # several query heads share one key head
            share = len(heads) // len(units)
            ties.tie(heads.reshape(-1, share), units[:, None])  # a single key head stays, whichever queries go
    assert heads is not None
    mask = operands[3] if len(operands) > 3 else None
    if isinstance(mask, Labelled) and mask.fields:
        biases = ties.whole(mask, [-1, -2])
        if len(mask.shape) > 2 and mask.shape[-3] == len(heads) > 1:
            ties.tie(heads, ties.vector_of(biases, -3))
    return Labelled(shape, (vector(heads, -3, rank),) if len(heads) > 1 else ())


@rule("batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "native_batch_norm")
def batch_norm(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the channels of a batch norm to its scale, shift and moments."""
    channels = ties.vector_of(operands[0], 1)
    for tensor in operands[1:5]:
        if isinstance(tensor, Labelled):
            ties.tie(ties.vector_of(tensor, 0), channels)
    return Labelled(shape, (vector(channels, 1, len(shape)),))


@rule("group_norm")
def group_norm(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the channels of each group: whole groups are removed, since fewer channels of a group have another mean."""
    inputs, groups, *affine = operands
    channels = ties.vector_of(inputs, 1)
    lines = channels.reshape(groups, -1)
    ties.tie(lines, lines[:, :1])
    for tensor in affine[:2]:
        if isinstance(tensor, Labelled):
            ties.tie(ties.vector_of(tensor, 0), channels)
    return Labelled(shape, (vector(channels, 1, len(shape)),))


@rule("layer_norm", "rms_norm", "instance_norm", "native_layer_norm")
def other_norm(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the averaged dimensions of other norms, since fewer elements have another mean."""
    first = 1 if "instance" in ties.name else len(shape) - len(operands[1])
    for tensor in operands[1:]:
        if isinstance(tensor, Labelled):
            ties.fix(tensor, f"{ties.name} averages over it")
    return ties.whole(operands[0], range(first, len(shape)), f"{ties.name} averages over it")


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "sort", "argmax", "flip", "var", "std")
def over_dim(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the dimensions of an operation such as softmax."""
    inputs, given = operands[0], (*operands, None)[1]
    several = isinstance(given, list | tuple) and all(type(dim) is int for dim in given)
    dims = list(given) if several else [given] if type(given) is int else [-1]
    kept = ties.whole(inputs, dims or range(len(inputs.shape)))
    return kept if inputs.shape == shape else Labelled(shape)


@rule("roll", "topk")
def over_later_dim(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the dimensions of an operation that has a number or steps before them."""
    result: Labelled = over_dim(ties, (operands[0], *operands[2:3]), shape)
    return result


@rule("mean", "sum", "amax", "amin")
def reduced(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the reduced dimensions of a reduction whole; the others keep their units."""
    inputs = operands[0]
    dims = operands[1] if len(operands) > 1 and operands[1] is not None else list(range(len(inputs.shape)))
    over = {dim % len(inputs.shape) for dim in ([dims] if isinstance(dims, int) else dims)}
    keeps = len(shape) == len(inputs.shape)
    left = ties.whole(inputs, over).fields
    return Labelled(shape, tuple(one if keeps else one.squeeze(tuple(over)) for one in left))


@rule("_weight_norm")
def weight_norm(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the rows of a weight to their lengths. Its columns may go: zeros there change no length."""
    direction, lengths, dim = (*operands, 0)[:3]
    if lengths.shape[dim] != shape[dim]:  # one length for all
        why = "a weight divided by its length"
        ties.fix(lengths, why)
        return ties.whole(direction, range(len(shape)), why)
    ties.tie(ties.vector_of(lengths, dim), ties.vector_of(direction, dim))
    return Labelled(shape, direction.fields)


@rule("randn_like", "rand_like")
def drawn(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the units: random numbers are drawn for each element alone, and those of a removed one go with it."""
    return Labelled(shape, operands[0].fields)


@rule("linalg_vector_norm", "norm")
def norm(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the dimensions of a vector norm whole; the others keep their units."""
    result: Labelled = reduced(ties, (operands[0], *operands[2:3]), shape)
    return result


@rule("einsum")
def einsum(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the dimensions that have one letter; those of the result keep their units."""
    equation, tensors = operands[:2]
    given, _, result = equation.replace(" ", "").partition("->")
    letters = given.split(",")
    if "." in equation or not result:
        for tensor in tensors:
            ties.fix(tensor)
        return Labelled(shape)
    found: dict[str, list[Ints]] = {}
    whole: set[str] = set()
    for tensor, names in zip((ties.without_joints(each) for each in tensors), letters, strict=True):
        for dim, name in enumerate(names):
            if any(one.shape[dim] > 1 for one in tensor.fields):
                found.setdefault(name, []).append(ties.vector_of(tensor, dim))
            elif tensor.shape[dim] > 1:
                whole.add(name)
    for name, units in found.items():
        for other in units[1:]:
            ties.tie(units[0], other)
        if name in whole:
            ties.forest.fix(units[0], "einsum joins it with what has a fixed size")
    return Labelled(shape, tuple(vector(found[n][0], dim, len(shape)) for dim, n in enumerate(result) if n in found))


@rule("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "_unsafe_view", "unsqueeze", "squeeze")
def reshaped(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep the units of elements in a reshape."""
    inputs = operands[0]
    fields = (np.broadcast_to(one, inputs.shape).reshape(shape) for one in inputs.fields)
    return Labelled(shape, tuple(compressed(np.ascontiguousarray(one)) for one in fields))


@rule("transpose", "permute", "t", "numpy_T", "swapaxes", "movedim")
def permuted(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Permute the units of dimensions."""
    inputs, rank = operands[0], len(operands[0].shape)
    if len(operands) == 1:
        order = list(range(rank))[::-1]
    elif isinstance(operands[1], int):
        order = list(range(rank))
        one, other = operands[1] % rank, operands[2] % rank
        order[one], order[other] = order[other], order[one]
    else:
        order = [dim % rank for dim in operands[1]]
    return Labelled(shape, tuple(each.transpose(order) for each in inputs.fields))


@rule("repeat_interleave")
def repeated(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Repeat the units of each index of a dimension, such as key heads that several query heads share."""
    inputs, times, dim = operands[0], operands[1], operands[2] if len(operands) > 2 else None
    if not isinstance(times, int) or dim is None:
        ties.fix(inputs)
        return Labelled(shape)
    return Labelled(shape, tuple(np.repeat(one, times, dim) if one.shape[dim] > 1 else one for one in inputs.fields))


@rule("expand", "repeat", "expand_as")
def expanded(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Expand the units along dimensions of size 1. Copies, such as one key for all heads, are new units: any of them may go.

    Copies of several key heads are not: a query head goes with its key head.
    """
    inputs = operands[0]
    before = (1,) * (len(shape) - len(inputs.shape)) + inputs.shape
    if any(old > 1 and old != new for old, new in zip(before, shape, strict=True)):
        ties.fix(inputs)
        return Labelled(shape)
    alone = all(one.size == one.shape[-1] for one in inputs.fields if ties.forest.roots(one).any())
    grown = [dim for dim, (old, new) in enumerate(zip(before, shape, strict=True)) if old < new and alone]
    copies = (vector(ties.forest.new(shape[dim]), dim, len(shape)) for dim in grown)
    return Labelled(shape, (*(one.reshape((1,) * (len(shape) - one.ndim) + one.shape) for one in inputs.fields), *copies))


@rule("grouped_mm_fallback", "_grouped_mm")
def grouped_product(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Tie the products of a mixture's experts, whose weights are (experts, inputs, outputs); all experts keep one width."""
    inputs, weight = operands[:2]
    weight = ties.whole(weight, [0], "the number of experts")
    for dim in (-2, -1):  # the kernel needs rows of whole 16 bytes
        units = ties.vector_of(weight, dim)
        if len(units) % _ALIGNED == 0:
            ties.tie(units.reshape(-1, _ALIGNED), units[::_ALIGNED, None])
    ties.tie(ties.vector_of(inputs, -1), ties.vector_of(weight, -2))
    return Labelled(shape, (vector(ties.vector_of(weight, -1), -1, len(shape)),))


@rule("embedding")
def embedding(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Make the columns of an embedding table units; its rows are tokens, which stay."""
    table = operands[0]
    ties.forest.fix(ties.vector_of(table, 0), "rows of an embedding are tokens")
    return Labelled(shape, (vector(ties.vector_of(table, 1), -1, len(shape)),))


@rule("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d")
def padded(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Labelled:
    """Keep dimensions that grow by padding or enlargement without units."""
    grown = [dim for dim, (old, new) in enumerate(zip(operands[0].shape, shape, strict=True)) if old != new]
    return Labelled(shape, ties.whole(operands[0], grown).fields)
