"""What one ATen operation costs: its FLOPs, when a formula for it is known, and the bytes it must move.

A FLOP here is half a multiply-add of a matrix product, a convolution or attention: what publications count and what a
device's peak is quoted for. Every other known operation does a bounded amount of arithmetic per element, takes as long
as its memory traffic, and counts bytes only. What is in neither class is *unknown*, and the trace says so.

Nothing here imports torch: tensors are used through ``shape``, ``numel()``, ``dtype`` and ``stride()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

Tensor = Any  # torch.Tensor; this module does not import torch
Flops = Callable[[Sequence[Any]], float]


def _matmul(left: Tensor, right: Tensor) -> float:
    """(..., m, k) times (..., k, n), or vectors in place of either."""
    columns = right.shape[-1] if right.dim() > 1 else 1
    return 2.0 * float(left.numel()) * float(columns)


def _convolution(args: Sequence[Any]) -> float:
    """input (N, Ci, *spatial), weight (Co, Ci / groups, *kernel), bias, stride, padding, dilation, transposed, ...

    Each position of the larger channel layout meets one kernel: outputs in a convolution, inputs in a transposed one.
    """
    data, weight, _, stride, padding, dilation, transposed = args[:7]
    if transposed:
        positions = prod(data.shape)
    else:
        settings = (_spread(values, data.dim() - 2) for values in (stride, padding, dilation))
        window = zip(data.shape[2:], weight.shape[2:], *settings, strict=True)
        spatial = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in window]
        positions = data.shape[0] * weight.shape[0] * prod(spatial)
    return 2.0 * float(positions) * float(prod(weight.shape[1:]))


def _spread(values: Sequence[int], dims: int) -> Sequence[int]:
    return values if len(values) == dims else [values[0]] * dims


def _convolution_backward(args: Sequence[Any]) -> float:
    """grad_output, input, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask.

    The gradients of the input and of the weight take a forward pass's work each; only those asked for are done.
    """
    _, data, weight, _, stride, padding, dilation, transposed, _, _, mask = args[:11]
    forward = _convolution((data, weight, None, stride, padding, dilation, transposed))
    return forward * (int(mask[0]) + int(mask[1]))


def _attention(args: Sequence[Any]) -> float:
    """query (B, H, S, D), key (B, H, T, D), value (B, H, T, V): two products, not halved by a causal mask."""
    query, key, value = args[:3]
    return 2.0 * float(prod(query.shape[:3])) * float(key.shape[2]) * float(query.shape[3] + value.shape[3])


def _attention_backward(args: Sequence[Any]) -> float:
    """grad_output, query, key, value: four products, and the scores recomputed, as fused kernels do."""
    _, query, key, value = args[:4]
    return 2.0 * float(prod(query.shape[:3])) * float(key.shape[2]) * float(3 * query.shape[3] + 2 * value.shape[3])


_ATTENTION = (
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "flash_attention_for_cpu",
    "fused_attention_overrideable",
)

FLOPS: dict[str, Flops] = {
    **{name: lambda a: _matmul(a[0], a[1]) for name in ("aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot")},
    **{name: lambda a: _matmul(a[1], a[2]) for name in ("aten.addmm", "aten.baddbmm", "aten.addmv", "aten.addbmm")},
    "aten._scaled_mm": lambda a: _matmul(a[0], a[1]),
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    **{f"aten._scaled_dot_product_{kind}": _attention for kind in _ATTENTION},
    **{f"aten._scaled_dot_product_{kind}_backward": _attention_backward for kind in _ATTENTION},
}


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


# Neither a kernel nor a byte: views (torch marks most of them) and memory without contents.
NOTHING = _aten("""
    _unsafe_view _reshape_alias unsafe_split unsafe_split_with_sizes alias lift lift_fresh detach detach_ empty
    empty_like empty_strided new_empty new_empty_strided set_ resize_ sym_size sym_stride sym_numel is_same_size
    _version
""")

# Writes without reading what was there.
_FILL = _aten("""
    zeros zeros_like new_zeros zero_ ones ones_like new_ones full full_like new_full fill_ fill scalar_tensor arange
    linspace eye bernoulli_ normal_ uniform_ exponential_ random_ rand rand_like randn randn_like randint randint_like
    randperm
""")

# Reads only the rows or elements that it returns.
_GATHER = _aten("embedding index index_select gather nll_loss_forward take")

# A bounded amount of arithmetic per element; torch tags pointwise and reducing operations itself, these it does not.
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
    glu_backward _prelu_kernel _prelu_kernel_backward mean sum var var_mean std amax amin max min argmax argmin any
    all prod logsumexp linalg_vector_norm norm cumsum masked_fill masked_fill_ where
""")


def flops(name: str, args: Sequence[Any], tensors: Iterable[Tensor], bounded: bool) -> float | None:
    """FLOPs of one call, 0 for work bounded by memory, None when unknown.

    Args:
        name: ``namespace.operation`` without the overload.
        args: the call's positional arguments.
        tensors: all tensors among its arguments.
        bounded: whether torch tags the operation as pointwise or reducing.
    """
    if name in FLOPS:
        # A complex multiply-add is four real ones or three, as the kernel pleases.
        return None if any(t.is_complex() for t in tensors) else FLOPS[name](args)
    return 0.0 if bounded or name in _BOUNDED or name in _FILL or name in _GATHER else None


def traffic(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Bytes that one call reads and writes, at fp32 for floating tensors, each tensor once."""
    written = float(sum(map(tensor_bytes, outputs)))
    if name in _FILL:
        return written
    if name in _GATHER:
        return written + sum(min(written, tensor_bytes(t)) for t in inputs)
    return written + sum(map(tensor_bytes, inputs))


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of the elements that exist (an expanded dimension has one), 4 for any floating type."""
    elements = prod(size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step or size == 0)
    return int(elements) * element_bytes(tensor.dtype)


def element_bytes(dtype: Any) -> int:
    """Bytes of one element: 4 for any floating type, since tables are at fp32, and its own size for any other."""
    return 4 if dtype.is_floating_point else int(dtype.itemsize)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The distinct tensors among nested lists, tuples and mappings, in order."""
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
