"""int8, int4, sign and topk in C++: the reference's bits everywhere, and any bytes decoded as by the reference or refused."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import block_oracle as bo
from every_backend import IN_USE
from paceline import codecs
from paceline.codecs import ADD, SET, SUBTRACT, PayloadError, counter, native, reference
from paceline.codecs.codec import Codec

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")

CHUNK = 1 << 16
"""Elements that one thread takes at a time (csrc/pool.h)."""
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
BLOCKED = st.builds(
    lambda n, b: codecs.get(n, block=b), st.sampled_from(["int8", "int4", "fp8", "sign"]), st.sampled_from([64, 1024, CHUNK])
)
TOPK = st.builds(
    lambda d, v: codecs.get("topk", density=d, value_bits=v),
    st.sampled_from([1e-4, 1e-3, 0.01, 0.2, 1.0]),
    st.sampled_from([16, 32]),
)
CODECS = st.one_of(BLOCKED, TOPK)
SIZES = st.one_of(
    st.integers(0, 200),
    st.builds(lambda k, d: 1024 * k + d, st.integers(1, 5), st.integers(-66, 66)),
    st.builds(lambda k, d: CHUNK * k + d, st.integers(1, 3), st.integers(-66, 66)),
)
STARTS = st.one_of(st.integers(0, 300), st.builds(lambda k, d: (k << 32) + d, st.integers(1, 3), st.integers(-3000, 100)))


class Fenced:
    """Memory that ends where the process may not read: one byte too far is a segmentation fault."""

    def __init__(self, most: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-most // page) * page
        self.map = mmap.mmap(-1, self.size + page)
        self.bytes = np.frombuffer(self.map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert libc.mprotect(self.bytes.ctypes.data + self.size, page, 0) == 0

    def last(self, data: np.ndarray) -> np.ndarray:
        """A copy whose last byte is the last legal one."""
        room = self.bytes[self.size - data.nbytes : self.size]
        room[:] = data.reshape(-1).view(np.uint8)
        return room.view(data.dtype)


FENCES = (Fenced(5 << 20), Fenced(5 << 20))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def agree(codec: Codec, x: np.ndarray, start: int) -> None:
    key, size = counter.key(3, 4, 5), codec.body_range(x.size)[1]
    wanted = np.empty(size, np.uint8)
    reference.encode(codec, x, wanted, key, start)
    body = FENCES[1].last(np.full(size, 0xA5, np.uint8))
    before = FENCES[1].bytes[: FENCES[1].size - size].copy()
    assert native.encode(codec, FENCES[0].last(x), body, key, start) == size
    assert np.array_equal(body, wanted)
    assert np.array_equal(before, FENCES[1].bytes[: FENCES[1].size - size])
    for mode in (SET, ADD, SUBTRACT):
        out = FENCES[0].last(np.full(x.size, 0.25, np.float32))
        expected = out.copy()
        reference.decode(codec, wanted, expected, mode)
        native.decode(codec, body, out, mode)
        assert same_bits(out, expected)


@pytest.mark.everyday(IN_USE, others="long")
@RELAXED
@given(CODECS, SIZES, STARTS, st.sampled_from(bo.KINDS), st.integers(1, 3), st.integers(0, 99))
@example(codecs.get("int8", block=CHUNK), 3 * CHUNK + 1, 2**32 - CHUNK - 17, "normal", 3, 0)
@example(codecs.get("int4"), 2 * CHUNK + 1, 2**33 - 64, "mixed", 2, 0)
@example(codecs.get("topk"), 3 * CHUNK + 1, 0, "sparse", 3, 0)
@example(codecs.get("topk", density=0.2), 3 * CHUNK + 1, 0, "sparse", 2, 0)
def test_native_is_the_reference(isa, codec, n, start, kind, threads, seed):
    codecs.set_threads(threads)
    agree(codec, bo.gradient(kind, n, seed), start)


@RELAXED
@given(CODECS, st.integers(0, 700), st.integers(0, 999), st.sampled_from(["noise", "flips", "ones"]))
def test_any_body_is_decoded_as_by_the_reference_or_refused(isa, codec, n, seed, how):
    rng = np.random.default_rng(seed)
    size = codec.body_range(n)[0]
    body = rng.integers(0, 256, size, dtype=np.uint8)
    if how == "ones":
        body[:] = 255
    if how == "flips":
        reference.encode(codec, bo.gradient("normal", n, seed), body, counter.key(seed, 0), 0)
        for at in rng.integers(0, max(size, 1), 2 if size else 0):
            body[at] ^= 1 << rng.integers(0, 8)
    body, out, wanted = FENCES[0].last(body), FENCES[1].last(np.ones(n, np.float32)), np.ones(n, np.float32)
    try:
        reference.decode(codec, body, wanted, ADD)
    except PayloadError as error:
        with pytest.raises(PayloadError, match=str(error)[:9]):
            native.decode(codec, body, out, ADD)
        assert (out == 1).all()
    else:
        native.decode(codec, body, out, ADD)
        assert same_bits(wanted, out)


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.sampled_from(["int8", "int4", "fp8", "sign", "topk"]),
    st.binary(max_size=200),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 900),
)
def test_any_payload_is_decoded_or_refused(name, body, parameters, count):
    kind = type(codecs.get(name))
    try:
        codec = kind.of(parameters)
    except PayloadError:
        codec = codecs.get(name)
    for claimed in (count, count << 20, 2**64 - 1):
        for data in (body, (body * 100)[: codec.body_range(count)[0]]):
            with contextlib.suppress(PayloadError):
                assert codecs.decode(bo.sealed(codec, claimed, data)).size == claimed


@pytest.mark.parametrize("name", ["int8", "int4", "fp8", "sign", "topk"])
def test_any_form_of_input_gives_the_same_bytes(name):
    codec, x = codecs.get(name), bo.gradient("normal", 3001, 1)
    wanted = codecs.encode(codec, x, counter.key(1, 0), start=5).tobytes()
    wide = np.zeros(6002, np.float32)
    wide[::2] = x
    moved = np.zeros(4 * 3001 + 1, np.uint8)[1:].view(np.float32)
    moved[:] = x
    for same in (wide[::2], moved, x[::-1].copy()[::-1], x.astype(np.float64), x.astype(">f4")):
        assert codecs.encode(codec, same, counter.key(1, 0), start=5).tobytes() == wanted
    payload = np.concatenate([np.zeros(3, np.uint8), codecs.encode(codec, x, counter.key(1, 0), start=5)])[3:]
    assert same_bits(codecs.decode(payload), codecs.decode(wanted))
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
    assert codecs.encode(codec, torch.from_numpy(wide)[::2], counter.key(1, 0), start=5).tobytes() == wanted


def heap() -> int:
    """Bytes that C and C++ hold, mapped blocks included."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("needs glibc 2.33")
    libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [(f"f{k}", ctypes.c_size_t) for k in range(10)]})
    info = libc.mallinfo2()
    return int(info.f4) + int(info.f7)  # hblkhd, uordblks


@pytest.mark.everyday("1-int8", "2-int8")
@pytest.mark.parametrize("name", ["int8", "int4", "fp8", "sign", "topk"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_warm_call_allocates_nothing_of_the_tensors_size(name, threads):
    codecs.set_threads(threads)
    codec, x = codecs.get(name), bo.gradient("normal", 4 * CHUNK, 0)
    room, out = np.empty(codecs.max_payload_bytes(codec, x.size), np.uint8), np.empty_like(x)

    def step() -> None:
        payload = codecs.encode(codec, x, counter.key(1, 2, 3), out=room, backend="native")
        codecs.decode(payload, out, backend="native")
        codecs.decode(payload, out, codecs.ADD, backend="native")

    for _ in range(3):
        step()
    gc.collect()
    before = heap()
    tracemalloc.start()
    for _ in range(10):
        step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_384, "headers and handles, no arrays"
    assert heap() - before < 65_536
