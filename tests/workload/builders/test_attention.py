"""Attention as a fused kernel, with its scores in memory, and over a sliding window."""

from __future__ import annotations

import pytest

from each_row import each_row
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.builders.attention import SlidingWindow, attention, eager
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.catalogue import traced


@pytest.mark.long
@each_row("name", sorted(set(SHAPES) - set(traced())))
def test_a_network_with_fused_attention_becomes_that_without(name: str) -> None:
    """Also with shared heads, latent attention, dropout, an encoder, a sliding window."""
    written = Workload.named(name, fused_attention=False)
    assert eager(Workload.named(name)).layers == written.layers
    assert written.attends == any(layer.kind == "Attention" for layer in written.layers) and eager(written) is written


def test_a_traced_network_becomes_nearly_that_without() -> None:
    fused, written = Workload.named("gpt2"), Workload.named("gpt2", fused_attention=False)
    changed = eager(fused)
    assert changed.flops_per_sample == pytest.approx(written.flops_per_sample, rel=0.01)
    assert changed.activation_bytes == pytest.approx(written.activation_bytes, rel=0.05)
    assert changed.parameters == fused.parameters and not any(
        o.kind == "attention" for layer in changed.layers for o in layer.operations
    )


def test_a_network_without_attention_stays() -> None:
    plain = Workload.named("resnet-50")
    assert eager(plain) is plain and not plain.attends


def test_a_sliding_window_leaves_out_work_of_a_fused_kernel_alone() -> None:
    whole, slid = (attention("a", 4096, 4096, 64, 8, 64, causal=True, sliding=w).operations for w in (0, 128))
    assert [b.flops / a.flops for a, b in zip(whole, slid, strict=True)] == [128 / 4096] * 2
    assert [o.bytes for o in whole] == [o.bytes for o in slid] and [o.n for o in slid] == [4096] * 2
    written = [attention("a", 4096, 4096, 64, 8, 64, fused=False, sliding=w) for w in (0, 128)]
    assert written[0] == written[1]
    assert attention("a", 128, 128, 64, 8, 64, sliding=128) == attention("a", 128, 128, 64, 8, 64)


def test_every_so_many_blocks_see_all_tokens() -> None:
    assert [SlidingWindow(128, full_every=2).of_block(i) for i in range(4)] == [128, 0, 128, 0]
    assert [SlidingWindow(4096).of_block(i) for i in range(3)] == [4096] * 3
    layers = Workload.named("gpt-oss-20b", 4096).layers
    seen = [o.sliding for layer in layers for o in layer.operations if o.kind == "attention" and not o.backward]
    assert seen == [128, 0] * 12
    with pytest.raises(UserError, match="no sliding window has 0 tokens"):
        SlidingWindow(0)
