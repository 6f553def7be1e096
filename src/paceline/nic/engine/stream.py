"""Stream format of all engines: beats of 32 bytes with valid and ready, cut into frames.

A frame has header beats, which pass unchanged, then payload beats. Byte 0 of a beat is its lowest, and first on the wire.
"""

from typing import Any

from amaranth.hdl import Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

BEAT_BYTES = 32
LANES = 8
MARK = 0x28
"""Type of service of a frame that the engine works on (Li et al., MICRO 2018, section VI-B)."""
HEADS = 4
"""Bits of the number of header beats."""


class Beat(data.Struct):
    """One beat of the stream. ``bytes`` is 1 to 32, and 32 in all but a frame's last beat."""

    data: 8 * BEAT_BYTES
    bytes: 6
    first: 1
    last: 1


def beat_layout(beat_bytes: int = BEAT_BYTES) -> Any:
    """Return the layout of a beat of another width; at 32 bytes it is that of ``Beat``."""
    if beat_bytes == BEAT_BYTES:
        return Beat
    return data.StructLayout({"data": 8 * beat_bytes, "bytes": beat_bytes.bit_length(), "first": 1, "last": 1})


def signature() -> stream.Signature:
    """Return the signature of a stream of beats."""
    return stream.Signature(Beat)


def is_marked(beat: Value) -> Value:
    """Return whether a frame with this first beat is marked.

    Bytes 12 and 13 are the EtherType; byte 15 is IPv4's type of service, and bytes 14 and 15 hold IPv6's traffic class. The
    two bits of congestion notification do not count.
    """
    octets = [beat[8 * i : 8 * i + 8] for i in range(16)]
    ipv4 = (octets[12] == 0x08) & (octets[13] == 0x00) & (octets[15][2:] == MARK >> 2)
    ipv6 = (octets[12] == 0x86) & (octets[13] == 0xDD) & (octets[14][:4] == MARK >> 4) & (octets[15][6:] == MARK >> 2 & 3)
    return ipv4 | ipv6


def named(m: Module, value: Value, name: str) -> Signal:
    """Return the value as a signal. Amaranth repeats an expression at each use, a signal only once."""
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


class Skid(wiring.Component):
    """Buffer of two entries between two streams, so that ``valid`` and ``ready`` never pass through without a register.

    Args:
        shape: layout of the streams' elements.
    """

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"taken": In(stream.Signature(shape)), "given": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        """Build the circuit."""
        m = Module()
        spare, full = Signal.like(Value.cast(self.taken.payload)), Signal()
        arrives, moves = self.taken.valid & ~full, ~self.given.valid | self.given.ready
        payload = Value.cast(self.given.payload)
        m.d.comb += self.taken.ready.eq(~full)
        with m.If(moves):
            m.d.sync += [
                payload.eq(Mux(full, spare, self.taken.payload)),
                self.given.valid.eq(full | self.taken.valid),
                full.eq(0),
            ]
        with m.Else():
            m.d.sync += full.eq(full | arrives)
        with m.If(~full):
            m.d.sync += spare.eq(self.taken.payload)
        return m


class Pipeline:
    """Registers that move together. Each stage holds its values until the last one can move on.

    ``enable`` is the condition under which every stage moves. A stage that is not valid is a bubble.
    """

    def __init__(self, m: Module, enable: Value) -> None:
        self.m, self.enable = m, enable

    def register(self, *pairs: tuple[Value, Value]) -> None:
        """Assign each second value to the first one when the stages move."""
        with self.m.If(self.enable):
            for register, value in pairs:
                self.m.d.sync += register.eq(value)
