"""Which implementation runs: the one that is named, else the fastest that can."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from codecs_toys import BACKENDS, N, X
from paceline.codecs import backends, container, decode, encode, get, native, reference
from paceline.codecs.backends import check, checksum, pick
from paceline.errors import UserError


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_backend_that_is_none_or_not_here_is_named():
    payload = encode(get("int8"), X)
    for call in (partial(encode, get("int8"), X), partial(decode, payload)):
        with pytest.raises(UserError, match=r"unknown backend 'nativ'.*native"):
            call(backend="nativ")
        if not torch.cuda.is_available():
            with pytest.raises(UserError, match=r"'triton': no CUDA device with Triton; leave backend out"):
                call(backend="triton")


def test_the_backend_that_is_named_does_the_work(backend, monkeypatch):
    """Else every test that compares two backends would compare one with itself."""
    calls = []

    def spy(kernels: Any, name: str) -> None:
        call = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *given: (calls.append((kernels.name, name)), call(*given))[1])

    for kernels in (reference, native):
        for name in ("encode", "decode", "checksum"):
            spy(kernels, name)
    decode(encode(get("int8"), X, backend=backend), backend=backend)
    assert calls == [(backend, name) for name in ("encode", "checksum", "checksum", "decode")]


def test_memory_of_the_host_is_the_fastest_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = get("int8")
    assert pick(codec, X, "reference") is reference
    monkeypatch.setattr(native, "available", lambda: False)
    assert pick(codec, X) is reference
    with pytest.raises(UserError, match="backend 'native': installed without compiling; leave backend out"):
        check(codec, "native")
    monkeypatch.setattr(native, "available", lambda: True)
    monkeypatch.setattr(native, "serves", lambda codec: False)
    assert pick(codec, X) is reference
    with pytest.raises(UserError, match="backend 'native' has no int8; leave backend out"):
        check(codec, "native")


def test_a_backend_must_reach_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "triton", lambda: None)
    with pytest.raises(ValueError, match="int8: a tensor on meta needs the triton backend; move it to the CPU"):
        pick(get("int8"), torch.empty(3, device="meta"))
    monkeypatch.setattr(backends, "triton", lambda: reference)
    with pytest.raises(ValueError, match="the triton backend takes tensors on a GPU"):
        pick(get("int8"), X, "triton")
    assert pick(get("int8"), torch.empty(3, device="meta")) is reference


def test_both_implementations_have_one_checksum() -> None:
    head, body = bytes(range(24)), np.arange(N, dtype=np.uint8)
    assert checksum(head, body) == container.checksum(head, body)
