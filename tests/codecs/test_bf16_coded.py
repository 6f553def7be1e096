"""bf16-coded: bfloat16's bits without loss, never longer than bf16 and four bytes a block, damaged bodies refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import block_oracle as bo
from paceline.codecs import ADD, PayloadError, decode, encode, get, max_payload_bytes
from paceline.codecs.reference.bf16_coded import BLOCK, best

CODEC = get("bf16-coded")


@pytest.fixture(params=bo.BACKENDS)
def backend(request):
    return request.param


def values(kind: str, count: int, seed: int) -> np.ndarray:
    """Gradients, and any bits: NaN, infinities and all exponents."""
    if kind != "bits":
        return bo.gradient(kind, count, seed)
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("item", bo.golden("bf16-coded"), ids=lambda item: item["name"])
def test_golden(item, backend):
    payload = encode(CODEC, item["x"], backend=backend)
    assert payload.tobytes().hex() == item["payload"]
    assert np.array_equal(decode(payload, backend=backend).view(np.uint32), bo.golden_input(item["decoded"]).view(np.uint32))


def test_the_bytes_by_hand(backend):
    # 1, -1.5, 2 and 0: exponents 127, 127, 128, 0. One bit a value: base 127, two escapes; raw would take 8 planes of a byte.
    payload = encode(CODEC, np.array([1, -1.5, 2, 0], np.float32), backend=backend)
    assert payload[32:].tobytes().hex() == "7f010200" + "00c00000" + "0c" + "8000"


@given(
    st.sampled_from(bo.BACKENDS),
    st.sampled_from([*bo.KINDS, "bits"]),
    st.integers(0, 2100),
    st.sampled_from([1.0, 1e-39]),
    st.integers(0, 99),
)
def test_what_arrives_is_what_bf16_sends(backend, kind, count, scale, seed):
    with np.errstate(all="ignore"):
        x = (values(kind, count, seed) * np.float32(scale)).astype(np.float32)
        payload = encode(CODEC, x, backend=backend)
        assert payload.tobytes() == encode(CODEC, x, backend="reference").tobytes()
        assert payload.size <= max_payload_bytes(CODEC, count) == 32 + 4 * -(-count // BLOCK) + count + 8 * -(-count // 8)
        sent = decode(encode(get("bf16"), x))
        assert np.array_equal(decode(payload, backend=backend).view(np.uint32), sent.view(np.uint32))
        out = np.ones(count, np.float32)
        assert np.array_equal(decode(payload, out, ADD, backend=backend), 1 + sent, equal_nan=True)


def test_normal_values_come_near_their_entropy(backend):
    x = bo.gradient("normal", 1 << 16, 1)
    x = x[: 1 << 16]
    payload = encode(CODEC, x, backend=backend)
    counts = np.bincount(encode(get("bf16"), x)[32:].view("<u2") >> 7 & 0xFF)
    shares = counts[counts > 0] / x.size
    entropy = 8 - np.sum(shares * np.log2(shares))
    assert entropy < 8 * payload.size / x.size < 1.08 * entropy


@given(st.lists(st.integers(0, 255), min_size=1, max_size=300))
def test_no_other_base_and_width_takes_fewer_bytes(exponents):
    e = np.array(exponents, np.uint8)
    base, width = best(e)
    planes = -(-e.size // 8)

    def size(b: int, w: int) -> int:
        return w * planes + (0 if w == 8 else int(np.count_nonzero((e < b) | (e.astype(int) >= b + (1 << w) - 1))))

    sizes = {(b, w): size(b, w) for w in range(1, 9) for b in range(256)}
    assert size(base, width) == min(sizes.values()) if width else len(set(exponents)) == 1


@pytest.mark.parametrize("what", ["width", "escapes", "longer", "shorter", "no escape", "beyond 255"])
def test_a_damaged_body_is_refused(what, backend):
    x = np.array([1, -1.5, 2, 0], np.float32)
    bad = bytearray(encode(CODEC, x)[32:].tobytes())
    if what == "width":
        bad[1] = 9
    elif what == "escapes":
        bad[2] = 1
    elif what == "longer":
        bad += b"\0"
    elif what == "shorter":
        bad = bad[:-1]
    elif what == "no escape":
        bad[8] = 0x04
    else:
        bad[:] = bytes.fromhex("ff020000" + "00c00000" + "01" + "00")
    out = x.copy()
    with pytest.raises(PayloadError):
        decode(bo.sealed(CODEC, x.size, bytes(bad)), out, ADD, backend=backend)
    assert np.array_equal(out, x)
