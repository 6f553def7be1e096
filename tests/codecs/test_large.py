"""Beyond 32 bits: draws of far elements always, a tensor of 2^31 + 3 elements on request (PACELINE_LARGE=1)."""

from __future__ import annotations

import os

import numpy as np
import pytest

from every_backend import labels
from paceline.codecs import counter, decode, encode, get, payload_bytes

BACKENDS = sorted({label.partition("-")[0] for label in labels()})
MANY = 2**31 + 3
NEEDED = 4 * MANY + MANY // 8 + MANY // 256 + 4 * MANY + (1 << 30)  # values, payload, values again, and something to spare


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["ternary", "int8", "int4"])
@pytest.mark.parametrize("start", [2**32 - 128, 2**32, 2**32 + 64, 3 * 2**32 - 64, 2**40 + 192])
def test_a_part_from_far_on_has_the_draws_of_its_place(name, backend, start):
    options = {"scale": 2.0} if name == "ternary" else {"block": 64}
    codec = get(name, **options)
    x = np.random.default_rng(1).uniform(-1, 1, 1024).astype(np.float32)
    whole = decode(encode(codec, x, counter.key(3, 0), start=start, backend=backend), backend=backend)
    parts = [
        decode(encode(codec, x[at : at + 64], counter.key(3, 0), start=start + at, backend=backend), backend=backend)
        for at in range(0, 1024, 64)
    ]
    assert np.array_equal(np.concatenate(parts), whole)
    near = encode(codec, x, counter.key(3, 0), start=start % 2**32, backend=backend)
    assert (near.tobytes() == encode(codec, x, counter.key(3, 0), start=start, backend=backend).tobytes()) == (start < 2**32)
    assert (
        encode(codec, x, counter.key(3, 0), start=start, backend=backend).tobytes()
        == encode(get(name, **options), x, counter.key(3, 0), start=start).tobytes()
    )


def _why_not() -> str:
    if os.environ.get("PACELINE_LARGE") != "1":
        return "takes minutes and 18.5 GB: set PACELINE_LARGE=1"
    if BACKENDS == ["reference"]:
        return "needs the extension: make native"
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "" if free > NEEDED else f"needs {NEEDED / 1e9:.1f} GB of free memory, there are {free / 1e9:.1f}"


@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(_why_not()), reason=_why_not())
def test_more_elements_than_31_bits_count():
    codec = get("sign")
    tile = np.tile(np.array([1, -1, 1, 1, -1, -1, 1], np.float32), 1 << 20)  # its period divides no power of two
    places = [slice(first, min(first + tile.size, MANY - 3)) for first in range(0, MANY - 3, tile.size)]
    x = np.empty(MANY, np.float32)
    for place in places:
        x[place] = tile[: place.stop - place.start]
    x[-3:] = [-5, 5, -5]  # a block of its own, behind 2^31
    payload = encode(codec, x, backend="native")
    assert payload.size == payload_bytes(codec, MANY)
    out = decode(payload, backend="native")
    assert out[-3:].tolist() == [-5, 5, -5]
    assert all(np.array_equal(out[place], tile[: place.stop - place.start]) for place in places)
