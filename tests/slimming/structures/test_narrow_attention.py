"""Attention with fewer heads than PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.structures.narrow_attention import NarrowAttention


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "both"])
def test_with_all_heads_it_is_pytorchs_own(batch_first: bool, masks: str) -> None:
    whole = nn.MultiheadAttention(12, 3, batch_first=batch_first).eval()
    x = torch.randn(2, 5, 12) if batch_first else torch.randn(5, 2, 12)
    given: dict[str, object] = {}
    if masks in ("causal", "both"):
        given |= {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5), "is_causal": masks == "causal"}
    if masks in ("padding", "both"):
        given["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        if masks == "both":
            given["attn_mask"] = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    expected = whole(x, x, x, need_weights=False, **given)[0]
    own = NarrowAttention.of(whole, None, None, None).eval()
    assert torch.allclose(own(x, x, x, **given)[0], expected, atol=1e-6)
