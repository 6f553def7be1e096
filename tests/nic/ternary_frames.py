"""Frames of the ternary engine and what the codec makes of them."""

from __future__ import annotations

import random

import numpy as np

from paceline.codecs import counter
from paceline.nic.bodies import draw_words, word
from paceline.nic.bodies import ternary_decoded as decoded
from paceline.nic.bodies import ternary_encoded as encoded
from paceline.nic.bodies import ternary_summed as summed

__all__ = ["LENGTHS", "decoded", "draw_registers", "encoded", "header", "summed", "word"]
LENGTHS = (0, 1, 7, 8, 9, 20, 63, 64, 65, 100, 127, 128, 129, 362)


def header(beats: int, marked: bool, random: random.Random) -> bytes:
    """Header beats of an IPv4 or IPv6 frame, with or without the mark; the ECN bits are any."""
    octets = bytearray(random.randbytes(32 * beats))
    ecn = random.randrange(4)
    if random.random() < 0.5:
        octets[12:14], octets[15] = b"\x08\x00", (0x28 if marked else 0x2C) | ecn
    else:
        octets[12:16] = bytes((0x86, 0xDD, 0x62, (0x80 if marked else 0xC0) | ecn << 4))
    return bytes(octets)


def draw_registers(scale: np.float32, key: counter.Key, start: int) -> dict[str, object]:
    """The encoder's registers for a scaler and the draws from ``start`` on, by their names."""
    first, factor, bound, *keys = draw_words(scale, key, start)
    return {
        "start": first,
        "settings": {"factor": factor, "bound": bound, "key": dict(zip(("low", "high", "high_after"), keys, strict=True))},
    }
