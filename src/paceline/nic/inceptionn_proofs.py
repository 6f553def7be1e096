"""Proofs about INCEPTIONN's engine: each property with its scope, method and depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.nic.formal import Method, Proof, prove

_BOUNDS = (1, 4, 7, 10, 14)
_BLOCK, _QUEUE = 2, 4
_SMALL_TEXT = "blocks of 2 beats, a queue of 4"


def faithful_lane(choose: Any = None) -> Proof:
    """Prove a lane's values in the published format; ``choose`` replaces the last stage of the encoder."""
    from paceline.nic.engine.lane_properties import Each, FaithfulLane
    from paceline.nic.engine.lanes import coded

    design = Each([FaithfulLane(k, choose or coded) for k in range(1, 16)])
    return prove("inceptionn lane, values", design, scope="every fp32 word, k 1 to 15", method="combinational", solver="abc")


def scaled_lane(choose: Any = None) -> Proof:
    """Prove a lane's values in the scaled format."""
    from paceline.nic.engine.lane_properties import Each, ScaledLane
    from paceline.nic.engine.lanes import coded

    design = Each([ScaledLane(k, 0, choose or coded) for k in _BOUNDS])
    scope = "every fp32 word up to a scale of 1, k 1, 4, 7, 10 and 14"
    return prove("inceptionn lane, error bound", design, scope=scope, method="combinational", solver="abc")


def aligner_narrow(make: Any = None) -> Proof:
    """Prove that the aligner of 4-byte beats neither loses, doubles nor moves a byte."""
    from paceline.nic.engine.align import Aligner
    from paceline.nic.engine.aligner_properties import Aligned

    scope = "beats of 4 bytes, chunks of up to 5, one bit of every byte"
    design = Aligned(make or partial(Aligner, 4, 5))
    return prove("aligner, narrow", design, scope=scope, method="reachability", solver="abc", merge=True)


def aligner_wide() -> Proof:
    """Prove the same as ``aligner_narrow`` at the engine's width, for the first cycles."""
    from paceline.nic.engine.aligner_properties import Aligned

    scope = "full width, one bit of every byte"
    return prove("aligner, full width", Aligned(), scope=scope, method="bounded", depth=8, solver="abc")


def compressor_stable() -> Proof:
    """Prove that the compressor's output waits unchanged."""
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.stream_properties import Stable

    design = Stable(partial(Compressor, _BLOCK, _QUEUE))
    return prove("compressor stable", design, scope=f"full width, {_SMALL_TEXT}", method="reachability", solver="abc")


def decompressor_stable() -> Proof:
    """Prove that the decompressor's output waits unchanged."""
    from paceline.nic.engine.decompressor import Decompressor
    from paceline.nic.engine.stream_properties import Stable

    scope = "full width, frames of up to 16 values"
    return prove("decompressor stable", Stable(Decompressor), scope=scope, method="reachability", solver="abc")


def compressor_overfull(method: Method = "reachability", depth: int = 0) -> Proof:
    """Prove that the compressor's queues never overflow: its queue of beats holds enough for all scales in their FIFO."""
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.stream_properties import NeverOverfull

    design = NeverOverfull(partial(Compressor, _BLOCK, 16))
    scope = "blocks of 2 beats, a queue of 16"
    return prove("compressor never overfull", design, scope=scope, method=method, depth=depth, solver="abc")


def compressor_untouched() -> Proof:
    """Prove that unmarked frames pass the compressor unchanged after any frames."""
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.stream_properties import Untouched

    scope = f"full width, {_SMALL_TEXT}, what can leave by then"
    design = Untouched(partial(Compressor, _BLOCK, _QUEUE))
    return prove("compressor untouched", design, scope=scope, method="bounded", depth=18, solver="abc")


def decompressor_untouched() -> Proof:
    """Prove that unmarked frames pass the decompressor unchanged after any frames."""
    from paceline.nic.engine.decompressor import Decompressor
    from paceline.nic.engine.stream_properties import Untouched

    scope = "full width, frames of up to 16 values, what can leave by then"
    return prove("decompressor untouched", Untouched(Decompressor), scope=scope, method="bounded", depth=16, solver="abc")


def compressor_passed() -> Proof:
    """Prove that unmarked frames pass the compressor up to its aligner: no beat is lost or doubled."""
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.stream_properties import Passed, WholeBeats

    design = Passed(partial(Compressor, _BLOCK, _QUEUE, make_aligner=WholeBeats), (100,))
    scope = f"unmarked frames, up to the aligner, {_SMALL_TEXT}, one bit of data"
    return prove("compressor passes beats", design, scope=scope, method="reachability", solver="abc", merge=True)


def decompressor_passed(make: Any = None) -> Proof:
    """Prove that unmarked frames pass the decompressor: no beat is lost or doubled."""
    from paceline.nic.engine.decompressor import Decompressor
    from paceline.nic.engine.stream_properties import Passed

    scope = "unmarked frames, one bit of data"
    design = Passed(make or Decompressor, (100,))
    return prove("decompressor passes beats", design, scope=scope, method="reachability", solver="abc", merge=True)


def decompressor_delivers() -> Proof:
    """Prove that every frame leaves the decompressor in time and with its length, whatever its content."""
    from paceline.nic.engine.decompressor import Decompressor
    from paceline.nic.engine.stream_properties import Delivered

    scope = "full width, input of 3 cycles, frames of up to 16 values, 22 cycles more"
    design = Delivered(Decompressor, 3, 22)
    return prove("decompressor delivers", design, scope=scope, method="bounded", depth=26, solver="abc")


INCEPTIONN: Mapping[str, Callable[[], Proof]] = {
    "inceptionn lane, values": faithful_lane,
    "inceptionn lane, error bound": scaled_lane,
    "aligner, narrow": aligner_narrow,
    "aligner, full width": aligner_wide,
    "compressor stable": compressor_stable,
    "compressor never overfull": compressor_overfull,
    "decompressor stable": decompressor_stable,
    "compressor untouched": compressor_untouched,
    "decompressor untouched": decompressor_untouched,
    "compressor passes beats": compressor_passed,
    "decompressor passes beats": decompressor_passed,
    "decompressor delivers": decompressor_delivers,
}
"""Proofs by name; each call proves one property."""
