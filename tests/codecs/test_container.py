"""The payload is exactly the described bytes, and whatever else arrives is refused as a PayloadError."""

from __future__ import annotations

import json
import struct
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from every_backend import drawn, kernels, labels
from paceline.codecs import ADD, PayloadError, arrays, container, counter, decode, encode, get, names, payload_bytes
from paceline.codecs.reference import bit_planes
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.ternary import TernarySum
from paceline.codecs.registry import BY_NAME
from paceline.strategy import TERNARY

FOLDER = Path(__file__).parent / "golden"
GOLDEN: dict[str, list[dict[str, Any]]] = {
    name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("ternary", "ternary-sum", "fp32", "bf16", "draws")
}
CASES = [(name, item) for name in ("ternary", "ternary-sum", "fp32", "bf16") for item in GOLDEN[name]]
BACKENDS = labels()


def array(payload: bytes | str) -> bit_planes.Bytes:
    return np.frombuffer(bytes.fromhex(payload) if isinstance(payload, str) else payload, np.uint8).copy()


def floats(words: list[str]) -> np.ndarray:
    return np.array([int(word, 16) for word in words], np.uint32).view(np.float32)


def codec(name: str, options: dict[str, Any]) -> Any:
    return (TernarySum if name == "ternary-sum" else BY_NAME[name])(**options)


def push(body: bytes, count: int, scale: float) -> bytes:
    return oracle.header_and_body(3, count, struct.pack("<f", scale), body)


def summed(body: bytes, workers: int, count: int, scale: float) -> bytes:
    return oracle.header_and_body(4, count, struct.pack("<fH", scale, workers), body)


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
    # magic P A C E   version 02, codec 03, 00 00   count 10 = 0a 00 00 00 00 00 00 00
    # scale 1.0 = 3f800000, little-endian 00 00 80 3f, then four zeros
    # As words: 45434150 00000302 0000000a 00000000 3f800000 00000000 | 024203cb. Their sum is 87054827, and
    # 1 * 45434150 + 2 * 00000302 + 3 * 0000000a + 5 * 3f800000 + 7 * 024203cb = 1929161ff, of which 32 bits stay.
    values = np.array([1, -1, 0, 1, 0, 0, -1, 1, 1, -1], np.float32)
    words = [0x45434150, 0x00000302, 0x0000000A, 0, 0x3F800000, 0, 0x024203CB]
    plain, weighted = sum(words), sum(k * word for k, word in enumerate(words, 1)) % 2**32
    before = bytes.fromhex("50414345 02 03 0000 0a00000000000000 0000803f 00000000")
    expected = before + struct.pack("<II", plain, weighted) + bytes.fromhex("cb03 4202")
    assert encode(get("ternary"), values).tobytes() == expected
    assert expected.hex() == GOLDEN["ternary"][0]["payload"]
    assert decode(array(expected)).tolist() == values.tolist()


def test_a_sum_by_hand():
    # Three workers: sums of -3 to 3 are sent as 0 to 6 in three bits. Ten elements:
    #   sum          -3 -2 -1  0  1  2  3  0    3 -3
    #   sum + 3       0  1  2  3  4  5  6  3    6  0
    #   bit 0         0  1  0  1  0  1  0  1    0  0       2 + 8 + 32 + 128 = aa, 00
    #   bit 1         0  0  1  1  0  0  1  1    1  0       4 + 8 + 64 + 128 = cc, 01
    #   bit 2         0  0  0  0  1  1  1  0    1  0       16 + 32 + 64 = 70, 01
    total = np.array([-3, -2, -1, 0, 1, 2, 3, 0, 3, -3], np.float32)
    assert encode(TernarySum(workers=3), total)[32:].tobytes().hex() == "aa00cc017001"
    assert GOLDEN["ternary-sum"][0]["payload"].endswith("aa00cc017001")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "item"), CASES, ids=lambda value: value if isinstance(value, str) else value["name"])
def test_golden_payloads(name, item, backend):
    label = backend.partition("-")[0]
    with kernels(backend):
        payload = encode(codec(name, item["options"]), floats(item["input"]), **drawn(item.get("draws", {})), backend=label)
        decoded = decode(array(item["payload"]), backend=label)
    assert payload.tobytes().hex() == item["payload"]
    assert [f"{word:08x}" for word in decoded.view(np.uint32).tolist()] == item["decoded"]


@pytest.mark.parametrize("item", GOLDEN["ternary"][:4], ids=lambda item: item["name"])
def test_golden_payloads_are_what_the_description_says(item):
    x = floats(item["input"])
    limit = oracle.bound(x, item["options"].get("clip"))
    scale = np.float32(item["options"].get("scale", limit))
    d = item["draws"]
    u = np.array([oracle.draw(d.get("seed", 0), d.get("step", 0), d.get("rank", 0), k) for k in range(x.size)])
    codes = oracle.codes(x, limit, scale, u)
    assert push(oracle.push_body(codes.tolist()), x.size, float(scale)).hex() == item["payload"]
    assert floats(item["decoded"]).tolist() == (codes * scale).tolist()


@pytest.mark.parametrize("item", GOLDEN["ternary-sum"], ids=lambda item: item["name"])
def test_golden_sums_are_what_the_description_says(item):
    total, workers, scale = floats(item["input"]), item["options"]["workers"], item["options"]["scale"]
    body = oracle.sum_body(total.astype(int).tolist(), workers)
    assert summed(body, workers, total.size, scale).hex() == item["payload"]
    unit = np.float32(scale) / np.float32(workers)
    assert np.array_equal(floats(item["decoded"]), total * unit)


@pytest.mark.parametrize("item", GOLDEN["draws"], ids=str)
def test_golden_draws(item):
    key = counter.key(item["seed"], item["step"], item["rank"])
    assert counter.uniform24(key, item["start"], 4).tolist() == item["draws"]
    assert [oracle.draw(item["seed"], item["step"], item["rank"], item["start"] + k) for k in range(4)] == item["draws"]


@given(st.lists(st.integers(-1, 1), max_size=300))
def test_the_push_is_two_bits_an_element_in_the_described_order(codes):
    x = np.array(codes, np.float32)
    payload = encode(get("ternary", scale=1.0), x)
    assert payload.tobytes() == push(oracle.push_body(codes), len(codes), 1.0)
    assert payload.size == payload_bytes(get("ternary"), len(codes)) == 32 + TERNARY.push_bytes(len(codes))
    assert decode(payload).tolist() == codes


@given(st.integers(1, 600), st.integers(0, 200), st.randoms(use_true_random=False))
def test_the_sum_comes_back_exactly_in_the_described_bits(workers, count, random):
    total = [random.randint(-workers, workers) for _ in range(count)]
    codec = TernarySum(workers=workers, scale=float(workers))
    payload = encode(codec, total)
    assert payload[32:].tobytes() == oracle.sum_body(total, workers)
    assert payload.size - 32 == TERNARY.pull_bytes(count, workers) == -(-count // 8) * ceil(log2(2 * workers + 1))
    assert decode(payload).tolist() == total


@given(st.integers(1, 32), st.integers(0, 300), st.randoms(use_true_random=False))
def test_integers_of_any_width_come_back(width, count, random):
    values = np.array([random.getrandbits(width) for _ in range(count)], np.uint32)
    message = bit_planes.pack(values, width)
    assert message.tobytes() == oracle.pack(values.tolist(), width)
    assert message.size == bit_planes.packed_bytes(count, width)
    assert bit_planes.unpack(message, count, width).tolist() == values.tolist()


SAMPLE = encode(get("ternary"), np.linspace(-1, 1, 77, dtype=np.float32))
SUM = encode(TernarySum(workers=2, scale=0.5), np.arange(-2, 3, dtype=np.float32))
WHOLE = encode(get("fp32"), np.linspace(-1, 1, 9, dtype=np.float32))
HALF = encode(get("bf16"), np.linspace(-1, 1, 9, dtype=np.float32))


@pytest.mark.parametrize("payload", [SAMPLE, SUM, WHOLE, HALF], ids=["push", "sum", "fp32", "bf16"])
def test_any_flipped_bit_is_noticed(payload):
    for bit in range(8 * payload.size):
        broken = payload.copy()
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError):
            decode(broken)


@pytest.mark.parametrize("payload", [SAMPLE, SUM, WHOLE, HALF], ids=["push", "sum", "fp32", "bf16"])
def test_any_truncation_is_noticed(payload):
    for size in range(payload.size):
        with pytest.raises(PayloadError):
            decode(payload[:size])
    with pytest.raises(PayloadError):
        decode(np.append(payload, np.uint8(0)))


def test_words_that_change_places_are_noticed():
    # Their plain sum is the same; only the weighted one tells.
    swapped = WHOLE.copy()
    swapped[32:36], swapped[36:40] = WHOLE[36:40], WHOLE[32:36]
    with pytest.raises(PayloadError, match="checksum"):
        decode(swapped)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(0, ord("Q"), "begins with b'QACE'"), (4, 1, "version 1; this Paceline reads 2"), (5, 99, "99"), (6, 1, "not a Paceline")],
    ids=["magic", "version", "codec", "reserved"],
)
def test_a_payload_of_something_else_is_named(at, value, said):
    other = SAMPLE.copy()
    other[at] = value
    with pytest.raises(PayloadError, match=said):
        decode(other)


def test_a_codec_reads_no_other_codecs_payload():
    with pytest.raises(PayloadError, match="of codec 'bf16', not 'fp32'"):
        decode(HALF, only=(Fp32,))


@given(st.binary(max_size=400))
def test_the_checksum_is_the_two_described_sums(body):
    head = oracle.header_and_body(3, 5, b"\1\2", body)
    assert container.checksum(head[:24], np.frombuffer(body, np.uint8)) == struct.unpack("<II", head[24:32])


@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_payload_error(data):
    with pytest.raises(PayloadError):
        decode(array(data))


@settings(max_examples=3 * settings.default.max_examples)
@given(st.integers(0, 9), st.integers(0, 2**64 - 1), st.binary(min_size=8, max_size=8), st.binary(max_size=80), st.booleans())
def test_a_plausible_header_with_random_content_raises_nothing_but_payload_error(code, count, parameters, body, fitting):
    if fitting:
        count = 4 * len(body)
    payload = array(oracle.header_and_body(code, count, parameters, body))
    out = np.zeros(count if fitting else 1, np.float32)
    for given_out in (None, out):
        try:
            with np.errstate(all="ignore"):
                decode(payload, given_out)
        except PayloadError:
            pass
        except ValueError as error:
            assert "out has shape" in str(error)  # of the caller's own array


def test_a_code_that_no_encoder_writes_is_refused():
    with pytest.raises(PayloadError, match="negative zero"):
        decode(array(push(bytes([0b01, 0b11]), 8, 1.0)))
    with pytest.raises(PayloadError, match="more than 2 workers"):
        decode(array(summed(bytes([1, 1, 1]), 2, 1, 1.0)))
    for workers in (0, 40_000):
        with pytest.raises(PayloadError, match=f"a sum of {workers} workers"):
            decode(array(summed(b"", workers, 0, 1.0)))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scaler_that_no_encoder_writes_is_refused(scale):
    for payload in (push(b"\x01\x00", 8, scale), summed(b"\x01\x00", 1, 8, scale)):
        with pytest.raises(PayloadError, match="scale"):
            decode(array(payload))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_not_encoded(bad):
    with pytest.raises(ValueError, match="send this tensor dense"):
        encode(get("ternary"), np.array([0.0, bad, 1.0], np.float32))


def test_encode_takes_one_axis_and_torch_tensors():
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    x = torch.linspace(-1, 1, 9)
    assert encode(get("ternary"), x).tobytes() == encode(get("ternary"), x.numpy()).tobytes()
    with pytest.raises(ValueError, match="flatten"):
        encode(get("ternary"), x.reshape(3, 3))


def test_decode_add_adds_and_checks_the_length():
    out = np.ones(77, np.float32)
    decode(SAMPLE, out, ADD)
    assert np.array_equal(out, 1 + decode(SAMPLE))
    with pytest.raises(ValueError, match="77 elements"):
        decode(SAMPLE, out[:5], ADD)


@pytest.mark.parametrize("claimed", [0, 2**20, 2**40, 2**64 - 1])
@pytest.mark.parametrize("name", names())
def test_a_forged_length_is_refused_before_anything_is_allocated(name, claimed, monkeypatch):
    """With a right checksum, and with an ``out`` of the length that is claimed or without one."""
    forged = encode(get(name), np.linspace(-1, 1, 1000, dtype=np.float32)).copy()
    header, _ = container.read_header(forged[:32].tobytes())
    head = container.header_bytes(header._replace(elements=claimed))
    container.write_header(forged, head, container.checksum(head, forged[32:]))
    monkeypatch.setattr(arrays, "empty_floats", lambda like, count: pytest.fail(f"{count} values were allocated"))
    monkeypatch.setattr(container, "checksum", lambda head, body: pytest.fail("the body was read"))
    with pytest.raises(PayloadError, match=f"{claimed} elements take .* bytes, the payload holds {forged.size - 32}"):
        decode(forged)
    if claimed <= 2**20:
        with pytest.raises(PayloadError, match=f"{claimed} elements take"):
            decode(forged, np.zeros(claimed, np.float32))
