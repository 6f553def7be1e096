"""Proofs about the ternary engine: each property with its scope, method and depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.nic.formal import Proof, prove


def ternary_comparison(compare: Any = None) -> Proof:
    """Prove the rounding of the ternary lane and its comparison with fp32 words; ``compare`` replaces its circuit."""
    from paceline.nic.engine.ternary_lanes import compare as own
    from paceline.nic.engine.ternary_properties import Comparison

    scope = "every product of 48 bits, every sum of exponents of legal factors, every draw"
    return prove("ternary comparison", Comparison(compare or own), scope=scope, method="bounded", depth=6, solver="abc")


def decoder_stable() -> Proof:
    """Prove that the ternary decoder's output waits unchanged."""
    from paceline.nic.engine.stream_properties import Stable
    from paceline.nic.engine.ternary import TernaryDecoder

    scope = "full width, frames of up to 16 values"
    return prove("ternary decoder stable", Stable(TernaryDecoder), scope=scope, method="reachability", solver="abc")


def decoder_untouched() -> Proof:
    """Prove that unmarked frames pass the ternary decoder unchanged after any frames."""
    from paceline.nic.engine.stream_properties import Untouched
    from paceline.nic.engine.ternary import TernaryDecoder

    scope = "full width, beats 0 to 3 of frames 0 to 3, frames of up to 16 values"
    return prove("ternary decoder untouched", Untouched(TernaryDecoder), scope=scope, method="bounded", depth=9, solver="abc")


def encoder_untouched() -> Proof:
    """Prove that unmarked frames pass the ternary encoder unchanged for any choice of its lanes."""
    from paceline.nic.engine.stream_properties import FreeLanes, Untouched
    from paceline.nic.engine.ternary import TernaryEncoder

    design = Untouched(lambda: TernaryEncoder(FreeLanes))
    scope = "full width, beats 0 to 3 of frames 0 to 3, any choice of the lanes"
    return prove("ternary encoder untouched", design, scope=scope, method="bounded", depth=13, solver="abc")


TERNARY: Mapping[str, Callable[[], Proof]] = {
    "ternary comparison": ternary_comparison,
    "ternary decoder stable": decoder_stable,
    "ternary decoder untouched": decoder_untouched,
    "ternary encoder untouched": encoder_untouched,
}
"""Proofs by name; each call proves one property."""
