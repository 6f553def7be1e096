"""Messages of several tensors: the bytes of the packed way, sums as numbers have them, and nothing of a damaged one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline import codecs
from paceline.codecs import PayloadError, counter, ternary_parts
from paceline.codecs.reference.ternary import Ternary, TernarySum

SIZES = st.lists(st.one_of(st.integers(0, 70), st.sampled_from([63, 64, 128, 1000, 70_000])), min_size=1, max_size=6)
pytestmark = pytest.mark.skipif(not ternary_parts.serves(Ternary()), reason="needs the extension: make native")


def cut(values: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Parts with memory of their own, each at another distance from a register's border."""
    parts = []
    for index, part in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
        room = np.zeros(part.size + index, np.float32)
        room[index:] = part
        parts.append(room[index:])
    return parts


def gradients(count: int, rng: np.random.Generator) -> np.ndarray:
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-45, 20)).astype(np.float32)
    values[rng.random(count) < 0.1] = rng.choice(np.array([0.0, -0.0, 1e-45, -1e-40, 2.0**100], np.float32))
    return values


def ternary_of(sizes: list[int], seed: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """A message and the values that the packed way would have encoded."""
    rng = np.random.default_rng(seed)
    values = gradients(sum(sizes), rng)
    bounds = np.array([rng.choice([0.5, 1, 0]) * np.abs(part).max(initial=0) for part in cut(values, sizes)], np.float32)
    scales = np.array([float(bound) * rng.choice([1.0, 3.7]) for bound in bounds])
    with np.errstate(divide="ignore", over="ignore"):
        factors = np.where(scales < 2.0**-100, 0.0, 1 / np.float32(scales)).astype(np.float32)
    clipped = [np.clip(part, -b, b) * f for part, b, f in zip(cut(values, sizes), bounds, factors, strict=True)]
    out = np.full(codecs.max_payload_bytes(Ternary(), sum(sizes)) + 3, 255, np.uint8)
    message = ternary_parts.encode(cut(values, sizes), bounds, factors, counter.key(seed, 3, 1), start, out)
    assert (out[message.size :] == 255).all() and np.shares_memory(message, out)
    return message, np.concatenate(clipped)


@pytest.mark.parametrize("threads", [1, 3])
@given(SIZES, st.integers(0, 2**32), st.sampled_from([0, 5, 2**32 - 100, 2**32 - 64, 2**33 + 7]))
@example([70_000, 1, 70_000], 1, 2**32 - 70_030)
def test_the_bytes_are_those_of_the_packed_way(threads, sizes, seed, start):
    codecs.set_threads(threads)
    message, packed = ternary_of(sizes, seed, start)
    expected = codecs.encode(Ternary(scale=1.0), packed, counter.key(seed, 3, 1), start)
    assert message.tobytes() == expected.tobytes()
    plain = codecs.encode(Ternary(scale=1.0), packed, counter.key(seed, 3, 1), start, backend="reference")
    assert message.tobytes() == plain.tobytes()


def test_the_bytes_are_those_of_every_instruction_set(isa):
    test_the_bytes_are_those_of_the_packed_way.hypothesis.inner_test(1, [1000, 63, 0, 300], 5, 2**32 - 100)
    sums_agree([1, 2, 40], 1000, 5)


def sums_agree(workers: list[int], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums = [rng.integers(-most, most + 1, count).astype(np.float32) for most in workers]
    kinds = [Ternary(scale=1.0) if n == 1 else TernarySum(workers=n, scale=n) for n in workers]
    messages = [codecs.encode(kind, values) for kind, values in zip(kinds, sums, strict=True)]
    total = sum(workers)
    kind = TernarySum(workers=total, scale=total)
    added = ternary_parts.add(messages, count, np.full(codecs.max_payload_bytes(kind, count), 255, np.uint8))
    assert added.tobytes() == codecs.encode(kind, np.sum(sums, axis=0, dtype=np.float32)).tobytes()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=7), st.integers(0, 700), st.integers(0, 2**32))
@example([1] * 127, 65, 1)
@example([1] * 300, 1, 1)
@example([16384, 16383], 130, 1)
def test_messages_add_up_as_their_numbers_do(workers, count, seed):
    sums_agree(workers, count, seed)


@given(SIZES, st.integers(1, 40), st.integers(0, 2**32))
def test_a_sum_reaches_every_part_times_its_scale(sizes, workers, seed):
    rng = np.random.default_rng(seed)
    sums = rng.integers(-workers, workers + 1, sum(sizes)).astype(np.float32)
    scales = np.array([10.0 ** rng.uniform(-30, 30) for _ in sizes], np.float32)
    kind = TernarySum(workers=workers, scale=workers) if workers > 1 else Ternary(scale=1.0)
    parts = cut(np.full(sums.size, np.nan, np.float32), sizes)
    ternary_parts.decode(codecs.encode(kind, sums), parts, scales)
    for part, values, scale in zip(parts, cut(sums, sizes), scales, strict=True):
        assert part.tobytes() == (np.float32(0) + values * scale).tobytes()  # no negative zero


def test_a_number_that_is_none_is_refused():
    for bad in (np.nan, np.inf, -np.inf):
        for count, at in ((64, 3), (130, 129), (200, 100)):
            values = np.zeros(count, np.float32)
            values[at] = bad
            ones, out = np.ones(2, np.float32), np.empty(1000, np.uint8)
            with pytest.raises(ValueError, match="NaN or infinity"):
                ternary_parts.encode([values[:70], values[70:]], ones, ones, counter.key(0, 0), 0, out)


def test_out_must_hold_the_payload():
    ones = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="out has 50 bytes; 100 elements take 58"):
        ternary_parts.encode([np.zeros(100, np.float32)], ones, ones, counter.key(0, 0), 0, np.empty(50, np.uint8))


def resealed(message: np.ndarray) -> np.ndarray:
    """With a checksum that fits, as an encoder that errs would send it."""
    head = message[:24].tobytes()
    sums = np.array(codecs.backends.checksum(head, message[32:].copy()), np.uint32)
    return np.concatenate([message[:24], sums.view(np.uint8), message[32:]])


def damaged() -> dict[str, np.ndarray]:
    good = codecs.encode(TernarySum(workers=3, scale=3), np.ones(100, np.float32))
    flipped, long = good.copy(), np.concatenate([good, good[:1]])
    flipped[40] ^= 4
    above = good.copy()
    above[32:] = 255  # the sums 7 - 3 = 4 of three workers
    return {
        "checksum": flipped,
        "100 elements in": long,
        "100 are expected": codecs.encode(TernarySum(workers=3, scale=3), np.ones(99, np.float32)),
        "a scale of 2.0": codecs.encode(TernarySum(workers=3, scale=2), np.ones(100, np.float32)),
        "codec number": codecs.encode(codecs.get("int8"), np.ones(100, np.float32)),
        "shorter than": good[:20],
        "more than 3 workers|no encoder": resealed(above),
    }


@pytest.mark.parametrize("what", damaged())
def test_a_damaged_message_is_refused_and_changes_nothing(what):
    parts = [np.full(60, 7, np.float32), np.full(40, 7, np.float32)]
    with pytest.raises(PayloadError, match=what):
        ternary_parts.decode(damaged()[what], parts, np.ones(2, np.float32))
    assert all((part == 7).all() for part in parts)
    with pytest.raises(PayloadError, match=what):
        ternary_parts.add([damaged()[what]], 100, np.empty(1000, np.uint8))


def test_a_negative_zero_is_refused():
    message = codecs.encode(Ternary(scale=1.0), np.zeros(64, np.float32))
    message[40] = 1
    with pytest.raises(PayloadError, match="no encoder writes"):
        ternary_parts.add([resealed(message)], 64, np.empty(1000, np.uint8))
