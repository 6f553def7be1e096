"""Memory in any form: what is taken as it is, what is copied, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.codecs.arrays import as_bytes, empty_bytes, empty_floats, host_bytes, vector, writable
from paceline.codecs.container import PayloadError

WORDS = np.arange(12, dtype=np.uint8)


@pytest.mark.parametrize(
    "x",
    [
        [1, 2, 3],
        (1.0, 2.0, 3.0),
        np.array([1, 2, 3]),
        np.array([1, 9, 2, 9, 3])[::2],
        torch.tensor([1, 2, 3], dtype=torch.bfloat16),
    ],
    ids=["list", "tuple", "integers", "strided", "bfloat16"],
)
def test_numbers_become_fp32_without_gaps(x: Any) -> None:
    values = vector(x)
    assert values.dtype == np.float32 and values.flags.c_contiguous and values.tolist() == [1.0, 2.0, 3.0]


def test_fp32_is_not_copied() -> None:
    array, tensor = np.ones(3, np.float32), torch.ones(3)
    assert vector(array) is array and np.shares_memory(vector(tensor), tensor.numpy())
    assert vector(torch.ones(3, requires_grad=True)).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((2, 2)), r"a 1-D array, got shape \(2, 2\); flatten it first"),
        (torch.tensor(1.0), r"got shape \(\)"),
        (np.ones(2, np.complex64), "real numbers, got complex64"),
        (torch.ones(2, dtype=torch.complex64), r"real numbers, got torch\.complex64"),
        (np.array(["2020-01-01"], "M8[D]"), "real numbers, got datetime64"),
        (torch.ones(2).to_sparse(), "dense tensor, got .*; call to_dense"),
        ([object()], "real numbers"),
    ],
)
def test_what_is_no_vector_is_refused(x: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vector(x)


@pytest.mark.parametrize(
    "payload",
    [
        WORDS.tobytes(),
        bytearray(WORDS),
        memoryview(WORDS),
        WORDS,
        WORDS.reshape(3, 4),
        np.repeat(WORDS, 2)[::2],
        torch.from_numpy(WORDS),
    ],
)
def test_a_payload_is_bytes_of_any_kind(payload: Any) -> None:
    data = as_bytes(payload)
    assert data.dtype == np.uint8 and data.shape == (12,) and host_bytes(data) == WORDS.tobytes()


@pytest.mark.parametrize("payload", [np.ones(3, np.int8), np.ones(3, np.float32), torch.ones(3)])
def test_other_numbers_are_no_payload(payload: Any) -> None:
    with pytest.raises(PayloadError, match="a payload is uint8, not "):
        as_bytes(payload)


def test_room_is_beside_what_it_is_for() -> None:
    assert empty_bytes(WORDS, 5).dtype == np.uint8 and empty_floats(WORDS, 5).dtype == np.float32
    there = torch.empty(1, device="meta")
    assert empty_bytes(there, 5).dtype == torch.uint8 and empty_floats(there, 5).device.type == "meta"
    with pytest.raises(PayloadError, match="elements do not fit into memory"):
        empty_floats(WORDS, 2**62)


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ([0.0], "out is of type list"),
        (read_only(), "read-only"),
        (np.zeros((3, 1), np.float32), r"of shape \(3, 1\)"),
        (np.zeros(3, np.int32), "out is int32"),
        (torch.zeros(3, device="meta"), "on meta"),
    ],
)
def test_an_out_that_cannot_be_written_is_described(out: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}.*; give a NumPy array or a tensor: 1-D, writable, float32"):
        writable(out, WORDS, ("float32",))


def test_an_out_is_written_in_place() -> None:
    array, tensor = np.zeros(6, np.float32), torch.zeros(3)
    assert writable(array[::2], WORDS, ("float32",)).strides == (8,)
    assert np.shares_memory(writable(tensor, WORDS, ("float32",)), tensor.numpy())
    with pytest.raises(ValueError, match="contiguous, uint8"):
        writable(np.zeros(6, np.uint8)[::2], WORDS, ("uint8",))
