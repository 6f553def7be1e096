"""Bytes of messages that a network card compresses packet by packet. Headers and the number of packets do not change.

Ethernet with an MTU of 1,500. A segment has 14 bytes of Ethernet, 20 of IPv4 and 32 of TCP with timestamps in front of at most
1,448 bytes. Behind them a compressed segment has the card's own header (12 bytes, and 4 for its run of values), then the body.
A segment that would not become smaller is sent unchanged (Li et al. 2018, INCEPTIONN, MICRO, section VIII-C, on what stays).
"""

from __future__ import annotations

from math import ceil

MTU = 1500
HEADERS = 14 + 20 + 32
PAYLOAD = MTU - 20 - 32
CARD_HEADER = 12 + 4
GROUP = 8
"""Number of values that share a tag vector. The last group of a segment is padded with 2-bit tags."""
_VALUES = PAYLOAD // 4
_TAG_BITS = 2


def segment_bytes(values: int, element_bits: float, block_bytes: int) -> float:
    """Return the bytes on the line of one segment of fp32 values, headers included.

    Args:
        element_bits: bits of an encoded value, tag included. ``block_bytes``: bytes before the body, such as a scale.
    """
    if not values:
        return 0.0
    filled = -values % GROUP
    body = ceil((values * element_bits + filled * _TAG_BITS) / 8) + block_bytes
    return HEADERS + min(CARD_HEADER + body, 4 * values)


def message_bytes(values: int, element_bits: float, block_bytes: int, in_front: int) -> int:
    """Return the payload bytes of a message of ``values`` fp32 values. As in every other message, the headers of full segments
    are left out: the reachable share of a link accounts for them. The time of a message and a ratio of two messages are
    therefore those of the bytes on the line.

    Args:
        in_front: bytes of the message's own header, which stay as they are.
    """
    if not values:
        return 0
    full, rest = divmod(values, _VALUES)
    on_line = full * segment_bytes(_VALUES, element_bits, block_bytes) + segment_bytes(rest, element_bits, block_bytes)
    return in_front + ceil(on_line * PAYLOAD / (PAYLOAD + HEADERS))
