"""int8 and int4 of several tensors: the bytes and values of the packed way, and nothing of a damaged message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline import codecs
from paceline.codecs import ADD, SET, PayloadError, counter, integer_parts, native

SIZES = st.lists(st.one_of(st.integers(0, 70), st.sampled_from([63, 64, 128, 1000, 70_000])), min_size=1, max_size=6)
CODECS = st.builds(
    lambda name, block: codecs.get(name, block=block), st.sampled_from(["int8", "int4"]), st.sampled_from([64, 1024, 1 << 16])
)
INT4 = codecs.get("int4", block=64)
pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")


def cut(values: np.ndarray, sizes: list[int], aligned: bool = False) -> list[np.ndarray]:
    """Parts with memory of their own; each at another distance from a register's border, or all at one."""
    parts = []
    for index, part in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
        room = np.zeros(part.size + 64, np.float32)
        first = (-(room.ctypes.data // 4) % 16) + (0 if aligned else index)
        room[first : first + part.size] = part
        parts.append(room[first : first + part.size])
    return parts


def gradients(count: int, rng: np.random.Generator) -> np.ndarray:
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-45, 20)).astype(np.float32)
    values[rng.random(count) < 0.1] = rng.choice(np.array([0.0, -0.0, 1e-45, -1e-40, 2.0**100], np.float32))
    return values


def as_packed(codec, sizes: list[int], others: int, divisor: int, seed: int, start: int) -> None:
    """The parts' message, the sum's with others, and the mean of all of these, beside the general way on one array."""
    rng, count = np.random.default_rng(seed), sum(sizes)
    values, key = gradients(count, rng), counter.key(seed, 3, 1)
    more = [codecs.encode(codec, gradients(count, rng), counter.key(seed, 3, 2 + k)) for k in range(others)]
    parts = cut(values, sizes)
    out = np.full(codecs.max_payload_bytes(codec, count) + 3, 255, np.uint8)
    message = integer_parts.encode(codec, parts, more, key, start, out)
    total = values.copy()
    for other in more:
        codecs.decode(other, total, ADD)
    assert message.tobytes() == codecs.encode(codec, total, key, start, backend="reference").tobytes()
    assert (out[message.size :] == 255).all() and np.shares_memory(message, out)
    assert np.concatenate(parts).tobytes() == values.tobytes()
    codecs.decode(message, total, SET)
    for other in more:
        codecs.decode(other, total, ADD)
    for aligned in (False, True):
        for past in (False, True):
            means = cut(np.full(count, np.nan, np.float32), sizes, aligned)
            integer_parts.decode(codec, [message, *more], means, divisor, past_caches=past)
            assert np.concatenate(means).tobytes() == (total / np.float32(divisor)).tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@given(
    CODECS, SIZES, st.integers(0, 3), st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([0, 5, 2**32 - 100, 2**33 + 7])
)
@example(INT4, [70_000, 1, 70_000], 1, 3, 1, 2**32 - 70_030)
@example(codecs.get("int8", block=1 << 16), [65_535, 2, 65_537], 2, 4, 1, 0)
def test_bytes_and_means_are_those_of_the_packed_way(threads, codec, sizes, others, divisor, seed, start):
    codecs.set_threads(threads)
    as_packed(codec, sizes, others, divisor, seed, start)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_native_instruction_sets_agree(isa, name):
    as_packed(codecs.get(name, block=64), [1000, 63, 0, 301], 2, 3, 5, 2**32 - 100)
    as_packed(codecs.get(name), [1000, 4096, 1, 3001], 3, 4, 6, 0)


def test_a_number_that_is_none_is_refused():
    for bad in (np.nan, np.inf, -np.inf):
        for count, at in ((64, 3), (130, 129), (200, 100)):
            values = np.zeros(count, np.float32)
            values[at] = bad
            with pytest.raises(ValueError, match="NaN or infinity"):
                integer_parts.encode(INT4, [values[:60], values[60:]], [], counter.key(0, 0), 0, np.empty(1000, np.uint8))


def resealed(message: np.ndarray) -> np.ndarray:
    """With a checksum that fits, as an encoder that errs would send it."""
    sums = np.array(codecs.backends.checksum(message[:24].tobytes(), message[32:].copy()), np.uint32)
    return np.concatenate([message[:24], sums.view(np.uint8), message[32:]])


def damaged() -> dict[str, np.ndarray]:
    good = codecs.encode(INT4, np.ones(101, np.float32))
    flipped, code, scale, padding = good.copy(), good.copy(), good.copy(), good.copy()
    flipped[40] ^= 4
    code[32 + 8] = 0x18
    scale[32 + 3] = 0xFF
    padding[-1] |= 0x10
    return {
        "checksum": flipped,
        "101 elements in": np.concatenate([good, good[:1]]),
        "101 are expected": codecs.encode(INT4, np.ones(99, np.float32)),
        "blocks of 128": codecs.encode(codecs.get("int4", block=128), np.ones(101, np.float32)),
        "codec number": codecs.encode(codecs.get("int8", block=64), np.ones(101, np.float32)),
        "shorter than": good[:20],
        "no encoder writes": resealed(code),
        "scale is negative": resealed(scale),
        "padding": resealed(padding),
    }


@pytest.mark.parametrize("what", damaged())
def test_a_damaged_message_is_refused_and_changes_nothing(what):
    good = codecs.encode(INT4, np.ones(101, np.float32))
    parts = [np.full(61, 7, np.float32), np.full(40, 7, np.float32)]
    with pytest.raises(PayloadError, match=what):
        integer_parts.decode(INT4, [good, damaged()[what]], parts, 2)
    assert all((part == 7).all() for part in parts)
    with pytest.raises(PayloadError, match=what):
        integer_parts.encode(INT4, parts, [damaged()[what]], counter.key(0, 0), 0, np.empty(1000, np.uint8))


def test_what_they_serve():
    assert integer_parts.serves(codecs.get("int8")) and integer_parts.serves(INT4)
    assert not integer_parts.serves(codecs.get("sign")) and not integer_parts.serves(codecs.get("ternary"))
