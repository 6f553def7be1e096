"""Attention of transformers as a fused kernel that knows causality and windows, without a mask in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.workload.hub.skipped import running

if TYPE_CHECKING:
    import torch

_NAME = "traced_kernel"


def _fused(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return (batch, queries, heads, width). Heads that share keys and values read them once."""
    import torch

    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1
    plan = running()
    if plan is not None and sliding_window:
        plan.sliding[module._place] = int(sliding_window)
    if position_bias is None and value.shape[-1] != query.shape[-1]:  # latent attention
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        result = efficient(query, key, value, None, True, dropout, causal)[0]
    else:
        causal = causal and position_bias is None
        attend = torch.nn.functional.scaled_dot_product_attention
        result = attend(query, key, value, position_bias, dropout, causal, enable_gqa=key.shape[1] != query.shape[1])
    if result.is_contiguous():  # the kernel writes the heads of a token next to each other; without data a new shape is enough
        return result.reshape(result.shape[0], result.shape[2], result.shape[1], result.shape[3]), None
    return result.transpose(1, 2), None


def _says_nothing(*_: Any) -> None:
    """Stand for what reads the values of a batch: whether it is padded, or several sequences in a row."""


@contextmanager
def fused_attention(model: Any, chosen: bool) -> Iterator[None]:
    """Let ``model``'s attention run as the fused kernel, where transformers lets a function be chosen.

    A chosen function is given no mask: training on full sequences has none. Checks of a batch's values are left out.

    Args:
        chosen: False leaves attention as transformers runs it.
    """
    import torch

    spread: Any = torch.distributions.Distribution
    base: Any = import_module("transformers.modeling_utils")
    masks: Any = import_module("transformers.masking_utils")
    configs = {id(own): own for module in model.modules() if (own := getattr(module, "config", None)) is not None}
    before = {key: getattr(own, "_attn_implementation_internal", None) for key, own in configs.items()}
    validates = spread._validate_args
    packed = masks.find_packed_sequence_indices
    warning = base.PreTrainedModel.warn_if_padding_and_no_attention_mask
    base.ALL_ATTENTION_FUNCTIONS.register(_NAME, _fused)
    try:
        base.PreTrainedModel.warn_if_padding_and_no_attention_mask = _says_nothing
        masks.find_packed_sequence_indices = _says_nothing
        spread.set_default_validate_args(False)
        for own in configs.values():
            if chosen and hasattr(own, "_attn_implementation_internal"):
                own._attn_implementation_internal = _NAME
        yield
    finally:
        base.PreTrainedModel.warn_if_padding_and_no_attention_mask = warning
        masks.find_packed_sequence_indices = packed
        spread.set_default_validate_args(validates)
        for key, own in configs.items():
            if before[key] is not None:
                own._attn_implementation_internal = before[key]
        base.ALL_ATTENTION_FUNCTIONS._global_mapping.pop(_NAME, None)
