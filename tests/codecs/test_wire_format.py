"""The payload is exactly the described bytes, and whatever else arrives is refused as a PayloadError."""

from __future__ import annotations

import json
import struct
import zlib
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from paceline.codecs import PayloadError, bits, counter, get, names, ternary
from paceline.errors import UserError
from paceline.strategy import TERNARY

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parent / "golden.json").read_text())


def named(item: dict[str, Any]) -> str:
    return item["name"]


def array(payload: bytes | str) -> bits.Bytes:
    return np.frombuffer(bytes.fromhex(payload) if isinstance(payload, str) else payload, np.uint8).copy()


def described(body: bytes, workers: int, count: int, scale: float) -> bytes:
    """The header as the description has it, 24 bytes, little-endian, and the body."""
    header = b"PACE" + bytes([1, 1]) + struct.pack("<HQf", workers, count, scale)
    return header + struct.pack("<I", zlib.crc32(header + body)) + body


def test_ten_elements_by_hand():
    # Every magnitude is the scaler or nothing, so every draw chooses alike: 2**24 * |g| / s is 2**24 or 0.
    #
    #   element        0  1  2  3  4  5  6  7    8  9
    #   value         +1 -1  0 +1  0  0 -1 +1   +1 -1
    #   nonzero        1  1  0  1  0  0  1  1    1  1      bit j of a byte is element j:
    #   negative       0  1  0  0  0  0  1  0    0  1
    #
    # nonzero:  1 + 2 + 8 + 64 + 128 = 203 = cb, then 1 + 2 = 03.    negative:  2 + 64 = 66 = 42, then 2 = 02.
    # Fewer than 64 elements are one block, so the two planes follow each other whole: cb 03 42 02.
    #
    # magic P A C E   version 01, codec 01   workers 1 = 01 00   count 10 = 0a 00 00 00 00 00 00 00
    # scale 1.0 = 3f800000, little-endian 00 00 80 3f           CRC-32 of those 20 bytes and the body, little-endian
    values = np.array([1, -1, 0, 1, 0, 0, -1, 1, 1, -1], np.float32)
    before = bytes.fromhex("50414345 01 01 0100 0a00000000000000 0000803f")
    body = bytes.fromhex("cb03 4202")
    expected = before + struct.pack("<I", zlib.crc32(before + body)) + body
    assert get("ternary").encode(values).tobytes() == expected
    assert expected.hex() == GOLDEN["payloads"][0]["payload"]
    assert get("ternary").decode(array(expected)).tolist() == values.tolist()


def test_a_sum_by_hand():
    # Three workers: sums of -3 to 3 are sent as 0 to 6 in three bits. Ten elements:
    #   sum          -3 -2 -1  0  1  2  3  0    3 -3
    #   sum + 3       0  1  2  3  4  5  6  3    6  0
    #   bit 0         0  1  0  1  0  1  0  1    0  0       2 + 8 + 32 + 128 = aa, 00
    #   bit 1         0  0  1  1  0  0  1  1    1  0       4 + 8 + 64 + 128 = cc, 01
    #   bit 2         0  0  0  0  1  1  1  0    1  0       16 + 32 + 64 = 70, 01
    total = np.array([-3, -2, -1, 0, 1, 2, 3, 0, 3, -3], np.int8)
    assert ternary.pack_sum(total, 3).tobytes().hex() == "aa00cc017001"
    assert GOLDEN["sums"][0]["payload"].endswith("aa00cc017001")


@pytest.mark.parametrize("item", GOLDEN["payloads"], ids=named)
def test_golden_payloads(item):
    x = np.array(item["values"], np.float32)
    payload = get("ternary", **item["options"]).encode(x, **item["draws"])
    assert payload.tobytes().hex() == item["payload"]


@pytest.mark.parametrize("item", GOLDEN["payloads"][:4], ids=named)
def test_golden_payloads_are_what_the_description_says(item):
    x = np.array(item["values"], np.float32)
    limit = oracle.bound(x, item["options"].get("clip"))
    scale = np.float32(item["options"].get("scale", limit))
    d = item["draws"]
    u = np.array([oracle.draw(d.get("seed", 0), d.get("step", 0), d.get("rank", 0), k) for k in range(x.size)])
    codes = oracle.codes(x, limit, scale, u)
    assert described(oracle.push_body(codes.tolist()), 1, x.size, float(scale)).hex() == item["payload"]
    assert get("ternary").decode(array(item["payload"])).tolist() == (codes * scale).tolist()


@pytest.mark.parametrize("item", GOLDEN["sums"], ids=named)
def test_golden_sums(item):
    total = np.array(item["total"], np.int32)
    payload = get("ternary").encode_sum(total, item["workers"], item["scale"])
    assert payload.tobytes().hex() == item["payload"]
    body = oracle.sum_body(item["total"], item["workers"])
    assert described(body, item["workers"], total.size, item["scale"]).hex() == item["payload"]
    unit = np.float32(item["scale"]) / np.float32(item["workers"])
    assert np.array_equal(get("ternary").decode(payload), total.astype(np.float32) * unit)


@pytest.mark.parametrize("item", GOLDEN["draws"], ids=str)
def test_golden_draws(item):
    key = counter.key(item["seed"], item["step"], item["rank"])
    assert counter.uniform24(key, item["start"], 4).tolist() == item["draws"]
    assert [oracle.draw(item["seed"], item["step"], item["rank"], item["start"] + k) for k in range(4)] == item["draws"]


@given(st.lists(st.integers(-1, 1), max_size=300))
def test_the_push_is_two_bits_an_element_in_the_described_order(codes):
    x = np.array(codes, np.float32)
    payload = get("ternary", scale=1.0).encode(x)
    assert payload.tobytes() == described(oracle.push_body(codes), 1, len(codes), 1.0)
    assert payload.size == get("ternary").payload_bytes(len(codes)) == 24 + TERNARY.push_bytes(len(codes))
    assert get("ternary").decode(payload).tolist() == codes


@given(st.integers(1, 600), st.integers(0, 200), st.randoms(use_true_random=False))
def test_the_sum_comes_back_exactly_in_the_described_bits(workers, count, random):
    total = np.array([random.randint(-workers, workers) for _ in range(count)], np.int32)
    message = ternary.pack_sum(total, workers)
    assert message.tobytes() == oracle.sum_body(total.tolist(), workers)
    assert message.size == TERNARY.pull_bytes(count, workers) == -(-count // 8) * ceil(log2(2 * workers + 1))
    assert ternary.unpack_sum(message, count, workers).tolist() == total.tolist()


@given(st.integers(1, 32), st.integers(0, 300), st.randoms(use_true_random=False))
def test_integers_of_any_width_come_back(width, count, random):
    values = np.array([random.getrandbits(width) for _ in range(count)], np.uint32)
    message = bits.pack(values, width)
    assert message.tobytes() == oracle.pack(values.tolist(), width)
    assert message.size == bits.packed_bytes(count, width)
    assert bits.unpack(message, count, width).tolist() == values.tolist()


SAMPLE = get("ternary").encode(np.linspace(-1, 1, 77, dtype=np.float32))
SUM = get("ternary").encode_sum(np.arange(-2, 3, dtype=np.int32), 2, 0.5)


@pytest.mark.parametrize("payload", [SAMPLE, SUM], ids=["push", "sum"])
def test_any_flipped_bit_is_noticed(payload):
    for bit in range(8 * payload.size):
        broken = payload.copy()
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError):
            get("ternary").decode(broken)


def test_any_truncation_is_noticed():
    for size in range(SAMPLE.size):
        with pytest.raises(PayloadError):
            get("ternary").decode(SAMPLE[:size])
    with pytest.raises(PayloadError):
        get("ternary").decode(np.append(SAMPLE, np.uint8(0)))


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(0, ord("Q"), "magic b'QACE'"), (4, 2, "version 2"), (5, 9, "codec 9"), (6, 0, "not a ternary payload")],
    ids=["magic", "version", "codec", "no workers"],
)
def test_a_payload_of_something_else_is_named(at, value, said):
    other = SAMPLE.copy()
    other[at] = value
    with pytest.raises(PayloadError, match=said):
        get("ternary").decode(other)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_payload_error(data):
    with pytest.raises(PayloadError):
        get("ternary").decode(array(data))


@settings(max_examples=300)
@given(st.integers(0, 5), st.integers(0, 2**64 - 1), st.floats(width=32), st.binary(max_size=80), st.booleans())
def test_a_plausible_header_with_random_content_raises_nothing_but_payload_error(workers, count, scale, body, fitting):
    if fitting:
        count = 4 * len(body)
    payload = array(described(body, workers, count, scale))
    out = np.zeros(count if fitting else 1, np.float32)
    try:
        with np.errstate(all="ignore"):
            get("ternary").decode(payload)
            get("ternary").decode_add(payload, out)
    except PayloadError:
        pass
    except ValueError as error:
        assert "out has shape" in str(error)  # of the caller's own array


def test_a_code_that_no_encoder_writes_is_refused():
    with pytest.raises(PayloadError, match="negative zero"):
        get("ternary").decode(array(described(bytes([0b01, 0b11]), 1, 8, 1.0)))
    with pytest.raises(PayloadError, match="more than 2 workers"):
        get("ternary").decode(array(described(bytes([1, 1, 1]), 2, 1, 1.0)))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scaler_that_no_encoder_writes_is_refused(scale):
    with pytest.raises(PayloadError, match="scale"):
        get("ternary").decode(array(described(b"\x01\x00", 1, 8, scale)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_not_encoded(bad):
    with pytest.raises(ValueError, match="send this tensor dense"):
        get("ternary").encode(np.array([0.0, bad, 1.0], np.float32))


def test_encode_takes_one_axis_and_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.linspace(-1, 1, 9)
    assert get("ternary").encode(x).tobytes() == get("ternary").encode(x.numpy()).tobytes()
    with pytest.raises(ValueError, match="flatten"):
        get("ternary").encode(x.reshape(3, 3))


def test_decode_add_adds_and_checks_the_length():
    out = np.ones(77, np.float32)
    get("ternary").decode_add(SAMPLE, out)
    assert np.array_equal(out, 1 + get("ternary").decode(SAMPLE))
    with pytest.raises(ValueError, match="77 elements"):
        get("ternary").decode_add(SAMPLE, out[:5])


def test_an_unknown_codec_names_the_nearest():
    assert names() == ["ternary"]
    with pytest.raises(UserError, match="ternary"):
        get("ternery")
