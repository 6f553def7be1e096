"""Cost of one ATen operation: its kernels, their bytes, and their FLOPs if a formula is known.

A FLOP is half a multiply-add of a matrix product, a convolution or attention, as in publications and datasheets. Every other
known operation does a bounded amount of arithmetic per element: it takes as long as its memory traffic and counts bytes only.
An operation of neither class is *unknown*, and the trace reports it.

This module does not import torch; it uses ``shape``, ``numel()``, ``dtype`` and ``stride()`` of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from paceline.workload.layers import OperationKind

Tensor = Any  # torch.Tensor; this module does not import torch
Shape = tuple[float, float, float, float]  # batch, m, n, k of ``layers.Operation``


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launched kernel. ``flops`` is None if unknown; The others are those of an Operation."""

    kind: OperationKind
    bytes: float
    flops: float | None = 0.0
    shape: Shape = (0.0, 0.0, 0.0, 0.0)
    window: int = 1
    causal: bool = False


def _product(left: Tensor, right: Tensor) -> list[tuple[float, Shape]]:
    """Return the product of (..., m, k) and (..., k, n); either may be a vector."""
    n, k = right.shape[-1] if right.dim() > 1 else 1, left.shape[-1]
    m, batch = left.shape[-2] if left.dim() > 1 else 1, prod(left.shape[:-2])
    return [(2.0 * batch * m * n * k, (batch, m, n, k))]


def _convolution(data: Tensor, weight: Tensor, output: Tensor, transposed: bool, groups: int) -> tuple[float, Shape, int]:
    """Return FLOPs, forward shape and window of a convolution. The data are (N, Ci, *spatial), the weight (Co, Ci / groups,
    *kernel), the output (N, Co, ...).

    The kernel applies at each output position of a convolution, and at each input position of a transposed one.
    """
    work = 2.0 * prod((data if transposed else output).shape) * prod(weight.shape[1:])
    return work, _positions(work, output, groups), prod(weight.shape[2:])


def _positions(work: float, written: Tensor, groups: int) -> Shape:
    """Return the product of ``work`` FLOPs with one row for each position of ``written`` (N, C, *spatial)."""
    rows, columns = written.shape[0] * prod(written.shape[2:]), written.shape[1] // groups
    return groups, rows, columns, work / (2.0 * groups * rows * columns) if rows * columns else 0.0


def _attention(query: Tensor, key: Tensor, value: Tensor, per_query: int, per_value: int) -> list[tuple[float, Shape]]:
    """Return attention of query (B, H, S, D), key (B, H, T, D) and value (B, H, T, V): products by D and V, causal or not."""
    heads, s, t, d = prod(query.shape[:2]), query.shape[2], key.shape[2], query.shape[3]
    return [(2.0 * heads * s * t * (per_query * d + per_value * value.shape[3]), (heads, s, t, d))]


_LEFT = ("mm", "bmm", "mv", "dot", "vdot", "_scaled_mm")
_AFTER_BIAS = ("addmm", "baddbmm", "addmv", "addbmm")
_FUSED = (
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "flash_attention_for_cpu",
    "fused_attention_overrideable",
)
_PRODUCTS: dict[str, tuple[OperationKind, Callable[[Sequence[Any]], list[tuple[float, Shape]]]]] = {
    **{f"aten.{name}": ("matmul", lambda a: _product(a[0], a[1])) for name in _LEFT},
    **{f"aten.{name}": ("matmul", lambda a: _product(a[1], a[2])) for name in _AFTER_BIAS},
    **{f"aten._scaled_dot_product_{name}": ("attention", lambda a: _attention(a[0], a[1], a[2], 1, 1)) for name in _FUSED},
    # grad_output, query, key, value: four products and the recomputed scores, as in fused kernels.
    **{
        f"aten._scaled_dot_product_{name}_backward": ("attention", lambda a: _attention(a[1], a[2], a[3], 3, 2))
        for name in _FUSED
    },
}

_CAUSAL = {"flash_attention": (4, 11), "efficient_attention": (6, 11), "cudnn_attention": (6, 14)} | {
    "flash_attention_for_cpu": (4, 7),
    "fused_attention_overrideable": (5, 13),
}
"""Positions of ``is_causal`` in the arguments of fused attention, in the forward and in the backward pass."""


def _is_causal(name: str, args: Sequence[Any]) -> bool:
    backward = name.endswith("_backward")
    fused = name.removeprefix("aten._scaled_dot_product_").removesuffix("_backward")
    place = _CAUSAL[fused][backward] if fused in _CAUSAL else len(args)
    return len(args) > place and bool(args[place])


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# No kernel and no bytes: views (torch marks most of them) and uninitialised memory.
NOTHING = _aten("""
    _unsafe_view _reshape_alias unsafe_split unsafe_split_with_sizes alias lift lift_fresh detach detach_ empty
    empty_like empty_strided new_empty new_empty_strided set_ resize_ sym_size sym_stride sym_numel is_same_size
    _version squeeze_ unsqueeze_ transpose_ t_
""")

# Writes without a read.
_FILL = _aten("""
    zeros zeros_like new_zeros zero_ ones ones_like new_ones full full_like new_full fill_ fill scalar_tensor arange
    linspace eye bernoulli_ normal_ uniform_ exponential_ random_ rand rand_like randn randn_like randint randint_like
    randperm
""")

# Reads only the returned rows or elements.
_GATHER = _aten("embedding index index_select gather nll_loss_forward take")

# A bounded amount of arithmetic per element. Torch tags pointwise and reducing operations, but not these.
_BOUNDED = _aten("""
    native_batch_norm native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
    cudnn_batch_norm cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update native_layer_norm
    native_layer_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward
    _softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data nll_loss_backward
    nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward adaptive_max_pool2d
    adaptive_max_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward upsample_nearest1d upsample_nearest2d upsample_nearest2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward embedding_dense_backward index_put index_put_ _unsafe_index
    _unsafe_index_put scatter scatter_ scatter_add scatter_add_ index_add index_add_ index_copy select_backward
    slice_backward diagonal_backward select_scatter slice_scatter cat stack copy_ _to_copy clone constant_pad_nd
    repeat flip roll tril triu im2col col2im pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad2d_backward replication_pad2d replication_pad2d_backward native_dropout native_dropout_backward glu
    leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward elu_backward softplus_backward
    mish_backward glu_backward _prelu_kernel _prelu_kernel_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl mean sum var var_mean std amax amin max min argmax
    argmin any all prod logsumexp linalg_vector_norm norm cumsum masked_fill masked_fill_ where
    topk sort masked_scatter masked_scatter_backward as_strided_ polar _weight_norm_interface _weight_norm_interface_backward
    leaky_relu leaky_relu_ hardtanh hardtanh_ _embedding_bag _embedding_bag_backward
    _embedding_bag_per_sample_weights_backward
""")


def kernels(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor], bounded: bool) -> list[Kernel]:
    """Return the kernels of one call: one for each gradient in a convolution's backward pass, one for any other call.

    Args:
        name: ``namespace.operation`` without the overload.
        args: the call's positional arguments.
        inputs: all tensors among the arguments.
        outputs: all returned tensors.
        bounded: whether torch tags the operation as pointwise or reducing.
    """
    moved = traffic(name, inputs, outputs)
    convolution = name in ("aten.convolution", "aten.convolution_backward")
    if (convolution or name in _PRODUCTS) and any(t.is_complex() for t in inputs):
        return [Kernel("memory", moved, None)]  # a kernel may compute a complex multiply-add as four real ones or as three
    if name == "aten.convolution":
        work, shape, window = _convolution(args[0], args[1], outputs[0], args[6], args[8])
        return [Kernel("conv", moved, work, shape, window)]
    if name == "aten.convolution_backward":
        return _convolution_backward(args, outputs, moved)
    if name in ("aten._cudnn_rnn", "aten._cudnn_rnn_backward"):
        return _recurrent(args, backward=name.endswith("backward"))
    if name in _PRODUCTS:
        kind, count = _PRODUCTS[name]
        return [Kernel(kind, moved, work, shape, causal=_is_causal(name, args)) for work, shape in count(args)]
    return [Kernel("memory", moved, 0.0 if bounded or name in _BOUNDED or name in _FILL or name in _GATHER else None)]


def _convolution_backward(args: Sequence[Any], outputs: Sequence[Tensor], moved: float) -> list[Kernel]:
    """Return the kernels of a convolution's backward pass. The arguments are grad_output, input, weight, bias sizes, stride,
    padding, dilation, transposed, output padding, groups and mask.

    The gradients of the input and of the weight each cost as much as a forward pass; only requested ones count. The bytes of
    the gradient of the output count once, half with each.
    """
    gradient, data, weight, transposed, groups, mask = *args[:3], args[7], args[9], args[10]
    work, (_, positions, _, _), window = _convolution(data, weight, gradient, transposed, groups)
    if transposed:  # the weight (Ci, Co / groups, *kernel) applies at the positions of the input
        positions = data.shape[0] * prod(data.shape[2:])
    by_weight = (float(groups), weight.shape[0] / groups, float(prod(weight.shape[1:])), positions)
    wanted = [shape for shape, asked in ((_positions(work, data, groups), mask[0]), (by_weight, mask[1])) if asked]
    if not wanted:
        return [Kernel("memory", moved)]
    of_input = tensor_bytes(outputs[0]) + tensor_bytes(weight) + tensor_bytes(gradient) / 2 if len(wanted) == 2 else 0.0
    split = [of_input, moved - of_input] if len(wanted) == 2 else [moved]
    return [Kernel("conv", part, work, shape, window) for part, shape in zip(split, wanted, strict=True)]


GATES = (1, 1, 4, 3)  # gates by cuDNN's modes: plain with either activation, LSTM, GRU


def _recurrent(args: Sequence[Any], *, backward: bool) -> list[Kernel]:
    """Return a recurrent layer as in cuDNN (Appleyard et al. 2016, arXiv:1604.01946, section 3).

    Work that does not depend on the previous step is one product over all steps: that of the input, and both gradients of
        weights. Each step has one kernel for the product of the state, and one for the arithmetic of the gates.
    """
    mode, hidden, _, layers, batch_first = args[10:15] if backward else args[6:11]
    both, mask = (args[17], args[21]) if backward else (args[13], [False] * 4)
    data = args[0]
    batch, steps = (data.shape[0], data.shape[1]) if batch_first else (data.shape[1], data.shape[0])
    wide, rows, directions = GATES[mode] * hidden, batch * steps, 1 + both

    def product(m: int, n: int, k: int) -> Kernel:
        return Kernel("matmul", 4.0 * (m * k + k * n + m * n), 2.0 * m * n * k, (1.0, m, n, k))

    kernels: list[Kernel] = []
    for layer in range(layers):
        width = hidden * directions if layer else data.shape[-1]
        gates = Kernel("memory", 4.0 * batch * (2 * wide + 4 * hidden))
        if backward:
            state = [product(batch, hidden, wide)] * (steps if mask[1] else steps - 1)
            inputs = [product(rows, width, wide)] if layer or mask[0] else []
            weights = [product(wide, width, rows), product(wide, hidden, rows)] if mask[3] else []
            kernels += (state + [gates] * steps + inputs + weights) * directions
        else:
            kernels += ([product(rows, wide, width)] + [product(batch, wide, hidden), gates] * steps) * directions
    return kernels


def traffic(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], width: Callable[[Any], int] | None = None) -> float:
    """Return the bytes that one call reads and writes: each tensor once. ``width``: bytes of an element of a type; None: as
    ``element_bytes``.
    """
    written = float(sum(tensor_bytes(t, width) for t in outputs))
    if name in _FILL:
        return written
    if name in _GATHER:
        return written + sum(min(written, tensor_bytes(t, width)) for t in inputs)
    return written + sum(tensor_bytes(t, width) for t in inputs)


def tensor_bytes(tensor: Tensor, width: Callable[[Any], int] | None = None) -> int:
    """Return the bytes of the stored elements (an expanded dimension has one). ``width`` as in ``traffic``."""
    elements = prod(size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step or size == 0)
    return int(elements) * (width or element_bytes)(tensor.dtype)


def element_bytes(dtype: Any) -> int:
    """Return the bytes of one element: 4 for any floating type, since tables are at fp32, and the actual size for any other."""
    return 4 if dtype.is_floating_point else int(dtype.itemsize)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the distinct tensors among nested lists, tuples and mappings, in order."""
    seen: set[int] = set()

    def walk(item: Any) -> Iterator[Tensor]:
        if isinstance(item, list | tuple):
            for part in item:
                yield from walk(part)
        elif isinstance(item, Mapping):
            yield from walk(list(item.values()))
        elif hasattr(item, "untyped_storage") and id(item) not in seen:
            seen.add(id(item))
            yield item

    return walk(value)
