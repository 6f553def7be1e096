"""Frames through an engine in Amaranth's simulator, with stalls on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.sim import Simulator

from paceline.nic.engine.stream import BEAT_BYTES

PATIENCE = 4000
"""Cycles without any beat at the output after which a simulation gives up."""


@dataclass(frozen=True)
class Frame:
    """What goes into an engine: bytes, the header's beats first, and the registers that are set while its first beat waits."""

    content: bytes
    registers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """What came out.

    Attributes:
        frames: bytes of each frame. ``errors``: its ``error``.
        beats: cycles of every output beat.
        cycles: until the last beat left.
        trace: value of each signal of the streams in every cycle, by name.
    """

    frames: tuple[bytes, ...]
    errors: tuple[bool, ...]
    beats: tuple[int, ...]
    cycles: int
    trace: Mapping[str, Sequence[int]]


class Stuck(RuntimeError):
    """An engine did not deliver what it was given."""


def simulate(engine: Any, frames: Sequence[Frame], gaps: Iterable[int] = (), pauses: Iterable[int] = ()) -> Simulated:
    """Send the frames back to back and collect what comes out.

    Args:
        engine: a component with ``beats_in``, ``beats_out``, ``error`` and the registers that frames name.
        gaps: cycles without an offer in front of each input beat, one after the other; then none.
        pauses: cycles without readiness in front of each output beat, likewise.

    Raises:
        Stuck: nothing came out for ``PATIENCE`` cycles, or a beat broke the rules of the stream.
    """
    results: list[bytes] = []
    errors: list[bool] = []
    beats: list[int] = []
    names = (
        "in.valid",
        "in.ready",
        "in.first",
        "in.last",
        "in.data",
        "out.valid",
        "out.ready",
        "out.first",
        "out.last",
        "out.data",
    )
    trace: dict[str, list[int]] = {name: [] for name in names}
    offers = [
        (frame, at, frame.content[at : at + BEAT_BYTES], at == 0, at + BEAT_BYTES >= len(frame.content))
        for frame in frames
        for at in range(0, len(frame.content), BEAT_BYTES)
    ]

    async def run(ctx: Any) -> None:
        waits, holds = iter(gaps), iter(pauses)
        gap, pause, index, quiet, cycle = next(waits, 0), next(holds, 0), 0, 0, 0
        entry, exit_, current, held = engine.beats_in, engine.beats_out, b"", None
        while len(results) < len(frames):
            offering = index < len(offers) and gap == 0
            if offering:
                frame, _, octets, first, last = offers[index]
                for name, value in frame.registers.items():
                    ctx.set(getattr(engine, name), value)
                content = int.from_bytes(octets, "little")
                ctx.set(entry.payload, {"data": content, "bytes": len(octets), "first": first, "last": last})
            elif gap:
                gap -= 1
            ctx.set(entry.valid, offering)
            ctx.set(exit_.ready, pause == 0)
            watched = [*_signals(entry), *_signals(exit_), exit_.payload.bytes, engine.error]
            _, _, *sampled = await ctx.tick().sample(*watched)
            for name, value in zip(names, sampled, strict=False):
                trace[name].append(int(value))
            valid, first, last, octets_out, size, wrong = (sampled[i] for i in (5, 7, 8, 9, 10, 11))
            if offering and sampled[1]:
                index, gap = index + 1, next(waits, 0)
            quiet += 1
            if held is not None and (valid, octets_out, size, last) != held:
                raise Stuck(f"cycle {cycle}: a beat changed while it waited")
            held = (valid, octets_out, size, last) if valid and pause else None
            if pause:
                pause -= 1
            elif valid:
                if bool(first) != (not current):
                    raise Stuck(f"cycle {cycle}: first is {first} behind {len(current)} bytes of a frame")
                if not 1 <= size <= BEAT_BYTES or (size < BEAT_BYTES and not last):
                    raise Stuck(f"cycle {cycle}: a beat of {size} bytes")
                current += int(octets_out).to_bytes(BEAT_BYTES, "little")[:size]
                beats.append(cycle)
                quiet, pause = 0, next(holds, 0)
                if last:
                    results.append(current)
                    errors.append(bool(wrong))
                    current = b""
            cycle += 1
            if quiet > PATIENCE:
                raise Stuck(f"{len(results)} of {len(frames)} frames came out, then nothing for {PATIENCE} cycles")

    simulator = Simulator(engine)
    simulator.add_clock(1e-8)
    simulator.add_testbench(run)
    simulator.run()
    return Simulated(tuple(results), tuple(errors), tuple(beats), len(trace[names[0]]), trace)


def _signals(side: Any) -> list[Any]:
    payload = side.payload
    return [side.valid, side.ready, payload.first, payload.last, payload.data]
