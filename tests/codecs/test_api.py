"""What the codecs are given: ``out`` of every kind, values that are no numbers, options of the wrong type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from codecs_toys import BACKENDS, N, X
from each_row import each_row
from paceline.codecs import ADD, SET, Codec, decode, encode, get, max_payload_bytes
from paceline.errors import UserError

CODECS = ["fp32", "ternary", "int8", "inceptionn", "topk"]


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return get(request.param)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_tensor_of_torch_is_written_in_place_and_given_back(codec, backend):
    wanted = encode(codec, X, backend=backend)
    room = torch.zeros(max_payload_bytes(codec, N) + 5, dtype=torch.uint8)
    payload = encode(codec, torch.from_numpy(X), out=room, backend=backend)
    assert torch.is_tensor(payload) and payload.data_ptr() == room.data_ptr() and not room[-5:].any()
    assert np.array_equal(payload.numpy(), wanted)
    values = decode(wanted, backend=backend)
    out = torch.ones(N)
    assert decode(payload, out, backend=backend) is out and np.array_equal(out.numpy(), values)
    decode(payload, out, ADD, backend=backend)
    assert np.array_equal(out.numpy(), values + values)
    parameter = torch.nn.Parameter(torch.zeros(N))
    decode(wanted, parameter, ADD, backend=backend)
    assert np.array_equal(parameter.detach().numpy(), values)


@each_row("dtype", [np.float16, np.float32, np.float64])
@each_row("step", [1, 2, -1])
@each_row("kind", [np.asarray, torch.as_tensor])
def test_values_go_into_any_float_type_and_strides(codec, backend, dtype, step, kind):
    if kind is torch.as_tensor and step < 0:
        return  # torch has no negative strides
    out = kind(np.zeros(N * abs(step), dtype))[::step]
    payload = encode(codec, X, backend=backend)
    decode(payload, out, ADD, backend=backend)
    assert np.array_equal(np.asarray(out), decode(payload, backend=backend).astype(dtype))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


WRONG_FLOATS: dict[str, Any] = {
    "list": [0.0] * N,
    "bytes": bytearray(N),
    "read-only": read_only(np.zeros(N, np.float32)),
    "int": np.zeros(N, np.int32),
    "complex": np.zeros(N, np.complex64),
    "two axes": np.zeros((N, 1), np.float32),
    "no axis": np.float32(0),
    "short": np.zeros(N - 1, np.float32),
    "bf16": torch.zeros(N, dtype=torch.bfloat16),
    "int tensor": torch.zeros(N).int(),
    "tensor of two axes": torch.zeros(1, N),
    "long tensor": torch.zeros(N + 1),
    "meta": torch.zeros(N, device="meta"),
    "sparse": torch.zeros(N).to_sparse(),
}


@each_row("out", WRONG_FLOATS.values())
def test_an_out_that_cannot_hold_the_values_is_refused(codec, backend, out):
    payload = encode(codec, X, backend=backend)
    for mode in (SET, ADD):
        with pytest.raises(ValueError, match=r"float32 or float64|the payload 1000 elements"):
            decode(payload, out, mode, backend=backend)


WRONG_BYTES: dict[str, Any] = {
    "list": [0] * 9000,
    "bytearray": bytearray(9000),
    "read-only": read_only(np.zeros(9000, np.uint8)),
    "fp32": np.zeros(9000, np.float32),
    "int8": np.zeros(9000, np.int8),
    "strided": np.zeros(18_000, np.uint8)[::2],
    "two axes": np.zeros((9000, 1), np.uint8),
    "short": np.zeros(40, np.uint8),
    "fp32 tensor": torch.zeros(9000),
    "strided tensor": torch.zeros(18_000, dtype=torch.uint8)[::2],
    "short tensor": torch.zeros(40, dtype=torch.uint8),
}


@each_row("out", WRONG_BYTES.values())
def test_an_out_that_cannot_hold_the_payload_is_refused(codec, backend, out):
    with pytest.raises(ValueError, match=r"contiguous, uint8|out has 40 bytes"):
        encode(codec, X, out=out, backend=backend)


@each_row(
    "x",
    [
        np.ones(9, np.complex64),
        torch.ones(9, dtype=torch.complex64),
        torch.ones(9).to_sparse(),
        [1j],
        np.zeros(9, "M8[s]"),
        [None, {}],
        ["a"],
    ],
)
def test_what_are_no_real_numbers_is_not_encoded(codec, backend, x):
    with pytest.raises(ValueError):
        encode(codec, x, backend=backend)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (None, {}, "unknown codec 'None'"),
        (3, {}, "unknown codec '3'"),
        (["int8"], {}, "unknown codec"),
        ("inceptionn", {"bound": "a"}, "option bound of inceptionn is 'a'; give a number"),
        ("inceptionn-scaled", {"bound": 10**400}, "a power of two"),
        ("int8", {"block": 1e9}, "option block of int8 is 1000000000.0; give a whole number"),
        ("int8", {"block": None}, "give a whole number"),
        ("sign", {"block": 0}, "power of two from 64"),
        ("ternary", {"scale": 1e300}, "scale is 1e\\+300"),
        ("ternary", {"scale": float("nan")}, "scale is nan"),
        ("ternary", {"clip": 1j}, "give a number or None"),
        ("topk", {"density": "1 %"}, "option density of topk is '1 %'; give a number"),
        ("topk", {"value_bits": 16.0}, "give a whole number"),
        ("fp32", {"backend": 3}, "unknown option of fp32 'backend'"),
    ],
)
def test_options_of_a_wrong_type_or_size_are_named(name, options, said):
    with pytest.raises(UserError, match=said):
        get(name, **options)


def test_numbers_of_numpy_are_numbers():
    assert encode(get("int8", block=np.int64(256)), X).tobytes() == encode(get("int8", block=256), X).tobytes()
    assert encode(get("topk", density=np.float64(0.5)), X).tobytes() == encode(get("topk", density=0.5), X).tobytes()
    assert encode(get("ternary", scale=np.float32(2)), X).tobytes() == encode(get("ternary", scale=2), X).tobytes()


def test_there_must_be_something_to_add_to():
    with pytest.raises(ValueError, match="no out to add to"):
        decode(encode(get("int8"), X), mode=ADD)
