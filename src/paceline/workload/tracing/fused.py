"""GPU kernels on the meta device: fused attention, dropout, recurrent layers as in cuDNN, and cells of an LSTM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paceline.workload.tracing.operations import GATES

if TYPE_CHECKING:
    import torch


@contextmanager
def fused_kernels() -> Iterator[None]:
    """Give meta tensors the kernels of a GPU instead of torch's fallbacks.

    The fallback of attention writes the (S, T) score matrix, and that of dropout its random numbers. The fallback of a
    recurrent layer runs and differentiates each step separately, while cuDNN combines steps if it can.
    """
    import torch

    aten = torch.ops.aten

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if query.dim() != 4:  # the fused kernels accept only (B, H, S, D)
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        if attn_mask is None:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        mask = attn_mask.to(query.dtype)
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]

    def dropout(data: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return torch.native_dropout(data, p, True)[0] if train and p > 0 else data

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", attention, "AutogradMeta")
        library.impl("dropout", dropout, "AutogradMeta")
        library.impl("lstm.input", _lstm, "AutogradMeta")
        library.impl("gru.input", _gru, "AutogradMeta")
        library.impl("lstm_cell", _lstm_cell, "AutogradMeta")
        library.impl("_cudnn_rnn", _recurrent, "Meta", allow_override=True)
        library.impl("_cudnn_rnn_backward", _recurrent_backward, "Meta")
        yield


_LSTM, _GRU = 2, 3  # modes of cuDNN


def _lstm(
    data: torch.Tensor,
    hx: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output, hy, cy = _cudnn(_LSTM, data, hx[0], hx[1], weights, biases, layers, dropout, train, both, batch_first)
    return output, hy, cy


def _gru(
    data: torch.Tensor,
    hx: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    output, hy, _ = _cudnn(_GRU, data, hx, None, weights, biases, layers, dropout, train, both, batch_first)
    return output, hy


def _lstm_cell(
    data: torch.Tensor,
    hx: Sequence[torch.Tensor],
    from_input: torch.Tensor,
    from_state: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    state_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two products and one kernel for the gates, as torch runs them on a GPU."""
    import torch

    gates = data @ from_input.t(), hx[0] @ from_state.t()
    output, cell, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, hx[1], input_bias, state_bias)
    return output, cell


def _cudnn(
    mode: int,
    data: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> Any:
    import torch

    each = 4 if biases else 2  # tensors per layer
    hidden = weights[1].shape[1]
    return torch.ops.aten._cudnn_rnn(
        data, weights, each, None, hx, cx, mode, hidden, 0, layers, batch_first, dropout, train, both, [], None
    )[:3]


def _recurrent(
    data: torch.Tensor,
    weights: Sequence[torch.Tensor],
    each: int,
    buffer: Any,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    mode: int,
    hidden: int,
    projected: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    both: bool,
    batch_sizes: Sequence[int],
    state: Any,
) -> tuple[torch.Tensor, ...]:
    """Read cuDNN's reserve space, the second to last result: gates, state and their inputs of every step."""
    directions, places = 1 + both, data.shape[0] * data.shape[1]
    output = data.new_empty((*data.shape[:2], hidden * directions))
    kept = data.new_empty(places * directions * layers * hidden * (GATES[mode] + 2))
    return output, hx.new_empty(hx.shape), hx.new_empty(0 if cx is None else cx.shape), kept, data.new_empty(0)


def _recurrent_backward(
    data: torch.Tensor,
    weights: Sequence[torch.Tensor],
    each: int,
    buffer: Any,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    return (
        data.new_empty(data.shape),
        hx.new_empty(hx.shape),
        None if cx is None else cx.new_empty(cx.shape),
        [w.new_empty(w.shape) for w in weights],
    )
