"""Bytes of messages that a network card compresses packet by packet: headers and the number of packets stay.

Ethernet with an MTU of 1,500. A segment has 14 bytes of Ethernet, 20 of IPv4 and 32 of TCP with timestamps in front of at most
1,448 bytes. Behind them a compressed segment has the card's own header (12 bytes, and 4 for its run of values), then the body.
A segment that would not become smaller travels as it is (Li et al. 2018, INCEPTIONN, MICRO, section VIII-C, on what stays).
"""

from __future__ import annotations

from math import ceil

MTU = 1500
HEADERS = 14 + 20 + 32
PAYLOAD = MTU - 20 - 32
CARD_HEADER = 12 + 4
GROUP = 8
"""Values that share a tag vector; the last group of a segment is filled with tags of 2 bits."""
_VALUES = PAYLOAD // 4
_TAG_BITS = 2


def segment_bytes(values: int, element_bits: float, block_bytes: int) -> float:
    """Bytes on the line of one segment of fp32 values, headers included.

    Args:
        element_bits: of an encoded value, tag included. ``block_bytes``: in front of the body, such as a scale.
    """
    if not values:
        return 0.0
    filled = -values % GROUP
    body = ceil((values * element_bits + filled * _TAG_BITS) / 8) + block_bytes
    return HEADERS + min(CARD_HEADER + body, 4 * values)


def message_bytes(values: int, element_bits: float, block_bytes: int, in_front: int) -> int:
    """Bytes of a message of ``values`` fp32 values as the network counts them: payload, with what full segments have of headers
    left out, as in every other message (the share of a link that is reached has them). So a message takes as long as its bytes
    on the line, and a ratio of such bytes is one of bytes on the line.

    Args:
        in_front: bytes of the message's own header, which stay as they are.
    """
    if not values:
        return 0
    full, rest = divmod(values, _VALUES)
    on_line = full * segment_bytes(_VALUES, element_bits, block_bytes) + segment_bytes(rest, element_bits, block_bytes)
    return in_front + ceil(on_line * PAYLOAD / (PAYLOAD + HEADERS))
