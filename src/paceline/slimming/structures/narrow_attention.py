"""Attention whose heads together are narrower than the sequence, which ``nn.MultiheadAttention`` does not support."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NarrowAttention(nn.Module):
    """Same interface as ``nn.MultiheadAttention`` without attention weights, for queries, keys and values of one width.

    Args:
        width: width of the input. ``heads`` of ``head_width`` each. ``leaving``: width of the output.
    """

    in_proj_bias = None
    """``nn.TransformerEncoderLayer`` reads it, and then does not bypass this module."""

    def __init__(
        self, width: int, heads: int, head_width: int, leaving: int, *, bias: bool, dropout: float, batch_first: bool
    ) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout, self.batch_first = heads, head_width, dropout, batch_first
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=bias)
        self.project = nn.Linear(heads * head_width, leaving, bias=bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Compute as ``nn.MultiheadAttention``. Masks are added to the scores; True in a boolean mask excludes a position."""
        given = [query, query if key is None else key, query if value is None else value]
        biases = self.qkv.bias.chunk(3) if self.qkv.bias is not None else (None,) * 3
        parts = zip(given, self.qkv.weight.chunk(3), biases, strict=True)
        projected = (F.linear(each if self.batch_first else each.transpose(0, 1), weight, bias) for each, weight, bias in parts)
        q, k, v = (each.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2) for each in projected)
        mask = _added(attn_mask, query.dtype)
        if key_padding_mask is not None:
            padding = _added(key_padding_mask, query.dtype)
            assert padding is not None
            mask = padding[:, None, None, :] if mask is None else mask + padding[:, None, None, :]
        causal = is_causal and key_padding_mask is None
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, None if causal else mask, dropout, causal)
        result = self.project(mixed.transpose(1, 2).flatten(-2))
        return (result if self.batch_first else result.transpose(0, 1)), None

    @classmethod
    def of(
        cls, whole: nn.MultiheadAttention, rows: Tensor | None, columns: Tensor | None, leaving: Tensor | None
    ) -> NarrowAttention:
        """Convert PyTorch's module.

        Args:
            rows: remaining rows of the input projection. ``columns``: columns of the input. ``leaving``: features of the
                output. None: all.
        """
        assert whole.in_proj_weight is not None
        weight, bias = whole.in_proj_weight.detach(), whole.in_proj_bias
        rows = torch.arange(len(weight)) if rows is None else rows
        columns = torch.arange(weight.shape[1]) if columns is None else columns
        leaving = torch.arange(whole.embed_dim) if leaving is None else leaving
        head_width = whole.embed_dim // whole.num_heads
        inner = rows[rows < whole.embed_dim]
        made = cls(
            len(columns),
            len(inner) // head_width,
            head_width,
            len(leaving),
            bias=bias is not None,
            dropout=whole.dropout,
            batch_first=whole.batch_first,
        ).to(weight)
        with torch.no_grad():
            made.qkv.weight.copy_(weight[rows][:, columns])
            made.project.weight.copy_(whole.out_proj.weight[leaving][:, inner])
            if bias is not None:
                made.qkv.bias.copy_(bias[rows])
                made.project.bias.copy_(whole.out_proj.bias[leaving])
        return made


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Convert a mask to a term that is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
