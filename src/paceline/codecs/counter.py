"""Counter-based random draws: the draw for an element depends only on (seed, step, rank, index).

So a run repeats bit for bit, a resumed run continues exactly, and every implementation of a codec draws the same numbers. The
hash is two rounds of multiply-xorshift with the constants of C. Wellons' ``lowbias32`` (nullprogram.com/blog/2018/07/31), with
a second key word between the rounds so that two steps never share a shifted sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MASK64 = (1 << 64) - 1
_CHUNK = 1 << 15  # elements: 128 KiB of scratch stays in the second-level cache


class Key(NamedTuple):
    """Two 32-bit words that select one stream of draws."""

    low: int
    high: int


def _splitmix64(x: int) -> int:
    """Return one output of SplitMix64 (Steele, Lea, Flood 2014), which mixes seed, step and rank into a key once a step."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def key(seed: int, step: int, rank: int = 0) -> Key:
    """Return the key of one worker's draws in one step. Arguments are any integers, taken modulo 2**64."""
    word = 0
    for part in (seed, step, rank):
        word = _splitmix64(word ^ (part & _MASK64))
    return Key(word & 0xFFFFFFFF, word >> 32)


def second_word(stream: Key, index: int) -> int:
    """Return the second word of the key at element ``index``, which depends on the upper half of the index."""
    return stream.high ^ (_splitmix64(index >> 32) & 0xFFFFFFFF if index >> 32 else 0)


def uniform24(stream: Key, start: int, count: int) -> NDArray[np.uint32]:
    """Return ``count`` draws for elements ``start``, ``start + 1``, ...: integers, uniform from 0 to 2**24 - 1.

    With 24 bits, a draw is exact in fp32. Element indices are 64-bit; their upper half enters the key.
    """
    out = np.empty(count, np.uint32)
    scratch = np.empty(min(count, _CHUNK), np.uint32)
    done = 0
    while done < count:
        index = start + done
        n = min(_CHUNK, count - done, (1 << 32) - (index & 0xFFFFFFFF))
        x, t = out[done : done + n], scratch[:n]
        high = second_word(stream, index)
        x[:] = np.arange(n, dtype=np.uint32)
        x += np.uint32(index & 0xFFFFFFFF)
        x ^= np.uint32(stream.low)
        np.right_shift(x, 16, out=t)
        x ^= t
        x *= np.uint32(0x7FEB352D)
        x ^= np.uint32(high)
        np.right_shift(x, 15, out=t)
        x ^= t
        x *= np.uint32(0x846CA68B)
        np.right_shift(x, 16, out=t)
        x ^= t
        x >>= 8
        done += n
    return out
