"""Frames of the ternary engine and what the codec makes of them."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32
from paceline.codecs import counter
from paceline.codecs.reference import bit_planes
from paceline.codecs.reference.ternary import Ternary

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


def word(value: np.float32) -> int:
    """The bits of an fp32 number."""
    return int(value.view(np.uint32))


def draw_registers(scale: np.float32, key: counter.Key, start: int) -> dict[str, object]:
    """The encoder's registers for a scaler and the draws from ``start`` on, as the host works them out."""
    factor = np.float32(2.0**24) / scale if scale >= np.float32(2.0**-100) else np.float32(0)
    after = ((start >> 32) + 1) << 32
    words = {"low": key.low, "high": counter.second_word(key, start), "high_after": counter.second_word(key, after)}
    return {"start": start & 0xFFFFFFFF, "settings": {"factor": word(factor), "bound": word(scale), "key": words}}


def encoded(x: F32, scale: np.float32, key: counter.Key, start: int) -> bytes:
    """The codec's body."""
    body = np.zeros(bit_planes.packed_bytes(x.size, 2), np.uint8)
    Ternary(scale=float(scale)).encode_body(x, body, key, start)
    return body.tobytes()


def decoded(body: bytes, count: int, scale: np.float32) -> bytes:
    """The codec's values."""
    return Ternary(scale=float(scale)).decode_body(np.frombuffer(body, np.uint8), count).tobytes()


def summed(sums: NDArray[np.int64], workers: int, ternary: bool = False) -> bytes:
    """A ``ternary-sum`` body, or one worker's ``ternary``."""
    if ternary:
        return bit_planes.pack_planes((sums != 0, sums < 0)).tobytes()
    return bit_planes.pack((sums + workers).astype(np.uint32), (2 * workers).bit_length()).tobytes()
