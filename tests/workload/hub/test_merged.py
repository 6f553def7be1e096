"""Kernels that a GPU runs as fewer ones."""

from __future__ import annotations

from paceline.workload.builders.attention import attention
from paceline.workload.builders.layer_builders import lay_out, linear, memory
from paceline.workload.hub.merged import merged
from paceline.workload.layers import Layer


def of(path: str, kind: str, kept: float, *operations: object) -> Layer:
    return Layer(name=path, kind=kind, operations=operations, activation_bytes=kept, activation_bytes_half=kept / 2)  # type: ignore[arg-type]


def test_a_rotation_is_one_kernel_and_what_a_view_saves_is_another_layer() -> None:
    (mixing,), _ = lay_out([attention("mix", 32, 32, 4, 4, 16)])
    first, *rest = mixing.operations
    alone = of("a", "LlamaAttention", mixing.activation_bytes, first, memory(False, 10, 9 * first.bytes), *rest)
    (layer,) = merged(alone)
    assert [o.calls for o in layer.operations if o.kind == "memory"] == [1]
    whole, layer = merged(of("a", "GPTNeoXAttention", 1.5 * mixing.activation_bytes, *mixing.operations))
    assert (whole.name, whole.kind) == ("a.split", "Split")
    assert whole.activation_bytes + layer.activation_bytes == 1.5 * mixing.activation_bytes


def test_a_window_narrows_attention() -> None:
    (mixing,), _ = lay_out([attention("mix", 32, 32, 4, 4, 16, causal=True)])
    (layer,) = merged(mixing, sliding=8)
    assert layer.flops_forward == mixing.flops_forward / 4
    assert all(o.sliding == 8 for o in layer.operations if o.kind == "attention")


def test_a_router_moves_its_scores_a_few_times() -> None:
    (product,), _ = lay_out([linear("router", 32, 16, 8, bias=False)])
    routed = of("r", "MixtralTopKRouter", 8.0, *product.operations, memory(False, 17, 1e6), memory(True, 9, 1e6))
    (layer,) = merged(routed)
    moved = [(o.calls, o.bytes) for o in layer.operations if o.kind == "memory"]
    assert moved == [(3, 5 * 4.0 * 32 * 8), (2, 4 * 4.0 * 32 * 8)]
