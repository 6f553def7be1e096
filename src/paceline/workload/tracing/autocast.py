"""16-bit autocast on the meta device, which lacks autocast.

Operations run in the type that autocast gives them on a GPU: products and convolutions in bfloat16; normalisations, softmax
and losses in float32; all others in the type of their inputs, the widest of several. Source: PyTorch, "Automatic Mixed
Precision package", CUDA op reference. bfloat16 and float16 have the same lists.
Cross entropy counts as one operation at fp32, as that reference and autocast on CPUs have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Kernels under this key change nothing for others: a thread sees them only between the guards below, and the tensors of no
# supported device have the key.
_KEY = "AutocastIPU"


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NARROW = _names("""
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution prelu addmm addmv
    addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell lstm gru rnn_tanh rnn_relu scaled_dot_product_attention
""")
"""Operations that cast to 16 bits, recurrent layers as in cuDNN."""

WIDE = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm
    rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    nll_loss_nd cross_entropy_loss hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits ctc_loss dist pdist cdist renorm logsumexp upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d prod softmax log_softmax
    cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm
""")
"""Operations that cast to fp32, unless an argument gives the type of the result."""

WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
"""Operations that cast to the widest type of their inputs."""


def autocast_key() -> Any:
    """Return the dispatch key of operations under this autocast."""
    import torch

    return getattr(torch._C.DispatchKey, _KEY)


@contextmanager
def autocast() -> Iterator[None]:
    """Make operations of this thread cast their inputs as autocast to bfloat16 does."""
    import torch

    key = autocast_key()
    with (
        torch.library._scoped_library("_", "IMPL") as others,
        torch.library._scoped_library("aten", "IMPL") as aten,
    ):
        others.fallback(torch.library.fallthrough_kernel, _KEY)
        for names, kind in ((NARROW, torch.bfloat16), (WIDE, torch.float32), (WIDEST, None)):
            for name in names:
                for overload in _overloads(name):
                    label = overload._schema.name + (f".{overload._overloadname}" if overload._schema.overload_name else "")
                    aten.impl(label, _casting(overload, kind, key), _KEY)
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        try:
            with torch._C._IncludeDispatchKeyGuard(key):
                yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


def _overloads(name: str) -> list[Any]:
    """Return the overloads that return a new tensor; empty if this torch lacks the operation."""
    import torch

    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return []
    every = (getattr(packet, overload) for overload in packet.overloads())
    return [overload for overload in every if not overload._schema.is_mutable and overload._schema.returns]


def _casting(operation: Any, kind: torch.dtype | None, key: Any) -> Callable[..., Any]:
    import torch

    keys = torch._C.DispatchKeySet(key)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):  # what it calls runs as it is, as in autocast
            given = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
            if kind is torch.float32 and given:
                return operation(*args, **kwargs)
            to = kind or _widest([*args, *kwargs.values()])
            return operation(*(_cast(x, to) for x in args), **{name: _cast(x, to) for name, x in kwargs.items()})

    return run


def _castable(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _widest(values: list[Any]) -> torch.dtype:
    import torch

    wide = any(_castable(value) and value.dtype == torch.float32 for value in values)
    return torch.float32 if wide else torch.bfloat16


def _cast(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(part, kind) for part in value]
    return value.to(kind) if _castable(value) else value
