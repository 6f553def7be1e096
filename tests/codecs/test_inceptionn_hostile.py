"""What no encoder wrote: refused alike by every backend, with no crash, no read behind the body, no write behind the values."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from each_row import each_row
from every_backend import decoded, encoded, labels
from paceline.codecs import PayloadError, decode, encode, get

BACKENDS = labels()
NAMES = ["inceptionn", "inceptionn-scaled"]
CODECS = st.builds(lambda name, k: get(name, bound=2.0**-k), st.sampled_from(NAMES), st.integers(1, 14))


def outcome(backend: str, codec, body: bytes, count: int) -> bytes | None:
    """The values' bytes, or None where the body is refused. Any other exception, or a crash, is the test's failure."""
    try:
        return decoded(backend, codec, body, count).tobytes()
    except PayloadError:
        return None


def agreed(codec, body: bytes, count: int) -> bytes | None:
    least, most = codec.body_range(count)
    if not least <= len(body) <= most:  # decode refuses these before any kernel sees them
        return None
    results = {backend: outcome(backend, codec, body, count) for backend in BACKENDS}
    assert len(set(results.values())) == 1, {b: r and r.hex() for b, r in results.items()}
    return results["reference"]


@settings(max_examples=4 * settings.default.max_examples)
@given(CODECS, st.integers(0, 70), st.binary(max_size=200))
def test_reference_and_native_agree_on_random_bytes(codec, count, data):
    agreed(codec, data, count)


@settings(max_examples=4 * settings.default.max_examples)
@given(CODECS, st.integers(1, 70), st.integers(-150, 130), st.binary(max_size=200))
def test_reference_and_native_agree_on_random_bursts_behind_a_directory_that_fits(codec, count, exponent, data):
    head = struct.pack("<I", len(data))
    agreed(codec, head + (b"" if codec.name == "inceptionn" else struct.pack("<h", exponent)) + data, count)


@settings(max_examples=2 * settings.default.max_examples)
@given(CODECS, st.sampled_from([5, 64, 1030, 16_400, 33_000]), st.integers(0, 2**32 - 1), st.data())
def test_reference_and_native_agree_on_damaged_bodies(codec, count, seed, data):
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(2, count) * 10.0 ** rng.integers(-3, 2)).astype(np.float32)
    x[rng.random(count) < rng.random()] = 0
    body = bytearray(encoded("reference", codec, x))
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["flip", "set", "cut", "grow", "move"]))
        at = data.draw(st.integers(0, min(len(body), 4096) - 1) | st.integers(0, len(body) - 1)) if body else 0
        if kind == "flip" and body:
            body[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "set":
            body[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))
        elif kind == "cut":
            del body[at : at + data.draw(st.integers(1, 40))]
        elif kind == "grow":
            body[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        elif len(body) >= 8:  # bytes between two entries of the directory: the total stays right
            first, second = struct.unpack_from("<II", body)
            moved = data.draw(st.integers(-70_000, 70_000))
            struct.pack_into("<II", body, 0, (first + moved) % 2**32, (second - moved) % 2**32)
    agreed(codec, bytes(body), count)


@given(CODECS, st.binary(max_size=120), st.integers(0, 2**64 - 1))
@example(get("inceptionn"), b"", 2**63)
def test_native_refuses_whole_payloads_with_any_count(codec, data, count):
    payload = encode(codec, np.ones(2, np.float32))[:32].copy()
    payload[8:16] = np.frombuffer(struct.pack("<Q", count), np.uint8)
    with pytest.raises(PayloadError):
        decode(np.concatenate([payload, np.frombuffer(data, np.uint8)]))


def faithful(text: str) -> bytes:
    bursts = bytes.fromhex(text)
    return struct.pack("<I", len(bursts)) + bursts


def scaled(exponent: int, text: str) -> bytes:
    bursts = bytes.fromhex(text)
    return struct.pack("<Ih", len(bursts), exponent) + bursts


# One value each, unless said otherwise.
FAITHFUL = [
    ("whole below one", 10, 1, faithful("0300 ffff7f3f")),
    ("two bytes below their threshold", 10, 1, faithful("0200 ff03")),
    ("one byte above its threshold", 10, 1, faithful("0100 04")),
    ("one byte of nothing where the step is the bound", 7, 1, faithful("0100 00")),
    ("one byte below the bound", 5, 1, faithful("0100 03")),
    ("a tag behind the last value", 10, 1, faithful("0400 00")),
    ("a payload cut off", 10, 1, faithful("0300 000080")),
    ("bytes behind the last burst", 10, 1, faithful("0100 01 00")),
    ("the directory too small", 10, 1, struct.pack("<I", 2) + bytes.fromhex("010001")),
    ("the directory too large", 10, 1, struct.pack("<I", 2**32 - 1) + bytes.fromhex("010001")),
]
SCALED = [
    ("four bytes", 7, 1, scaled(1, "0300 0000803f")),
    ("one byte of nothing", 6, 2, scaled(1, "0500 2000")),
    ("one byte above the scale", 6, 1, scaled(1, "0100 41")),
    ("two bytes where one does", 6, 1, scaled(1, "0200 0040")),
    ("two bytes just below their threshold", 7, 1, scaled(1, "0200 7f7f")),
    ("a block far below its scale", 6, 1, scaled(1, "0100 1f")),
    ("a block that is sent though all zero", 6, 1, scaled(1, "0000")),
    ("an exponent below the least", 6, 1, scaled(-149, "0100 20")),
    ("an exponent above the most", 6, 1, scaled(129, "0100 20")),
    ("bursts of an empty block", 6, 1, scaled(-32768, "0100 20")),
]


@pytest.mark.parametrize("backend", BACKENDS)
@each_row("case", [*((NAMES[0], *c) for c in FAITHFUL), *((NAMES[1], *c) for c in SCALED)])
def test_bodies_that_no_encoder_writes(case, backend):
    name, _, k, count, body = case
    with pytest.raises(PayloadError):
        decoded(backend, get(name, bound=2.0**-k), body, count)


@pytest.mark.parametrize("backend", BACKENDS)
def test_their_neighbours_are_legal(backend):
    for k, text in ((10, "0300 0000803f"), (10, "0200 0004"), (10, "0100 03"), (8, "0100 00"), (5, "0100 04")):
        decoded(backend, get("inceptionn", bound=2.0**-k), faithful(text), 1)
    for k, text in ((6, "0100 40"), (7, "0200 807f"), (6, "0100 20"), (6, "0100 a0")):
        decoded(backend, get("inceptionn-scaled", bound=2.0**-k), scaled(1, text), 1)


def test_the_largest_magnitude_does_not_become_infinite():
    x = np.array([3.4e38, -3.4e38, np.finfo(np.float32).max], np.float32)
    for backend in BACKENDS:
        for k in (1, 6, 7, 14):
            codec = get("inceptionn-scaled", bound=2.0**-k)
            assert np.isfinite(decoded(backend, codec, encoded(backend, codec, x), 3)).all()
