"""Sum in the switch: each rank sends its contribution up once, and receives the complete sum once."""

from __future__ import annotations

from paceline.codecs import PayloadError
from paceline.training.exchanges.streams.encoded_streams import Stream
from paceline.training.exchanges.wires.collectives import CollectiveSteps, Wire
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def in_switch(stream: Stream, start: int, stop: int, wire: Wire, buffers: Buffers = FRESH) -> CollectiveSteps[None]:
    """Replace elements ``start`` to ``stop`` by their sum over the workers, the same bits on every rank.

    The switch adds integers (ternary) or fp32 in the order of ranks (Sapio et al., SwitchML, NSDI 2021, section 3).
    """
    with wire.meter.span("encode", "codec"):
        message = stream.encode(start, stop, 1, buffers=buffers)
    length = stream.length(start, stop, wire.world_size)
    assert length is not None, "the formats that a switch adds have a known length"
    arrived = yield wire.through_switch(message, length, "switch", buffers)
    try:
        with wire.meter.span("decode", "codec"):
            stream.set(arrived, start, stop, wire.world_size)
    except PayloadError as error:
        raise PayloadError(f"a message of the switch: {error}") from error
