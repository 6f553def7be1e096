"""The C++ kernels: the reference's bits at every instruction set and number of threads, no byte outside, no allocation."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from every_backend import IN_USE, ISAS
from paceline import codecs
from paceline.codecs import ADD, SET, SUBTRACT, PayloadError, container, counter, moments, native, reference
from paceline.codecs.reference import ternary
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.codecs.reference.ternary import Ternary, TernarySum

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")
if native.available():
    from paceline import _native

CHUNK = 1 << 16
"""Elements that one thread takes at a time (csrc/pool.h)."""
SIZES = st.one_of(
    st.integers(0, 200),
    st.builds(lambda k, d: max(0, 64 * k + d), st.integers(1, 70), st.integers(-2, 2)),
    st.builds(lambda k, d: k * CHUNK + d, st.integers(1, 2), st.integers(-65, 65)),
)
STARTS = st.one_of(
    st.integers(0, 300),
    st.builds(lambda k, d: max(0, (k << 32) + d), st.integers(1, 3), st.integers(-200, 200)),
    st.integers(0, 2**48),
)
KEYS = st.builds(counter.Key, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
MODES = (SET, ADD, SUBTRACT)
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def gradient(n: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Heavy-tailed, with zeros of both signs and subnormal numbers."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, n) * scale).astype(np.float32)
    for value in (0.0, -0.0, 1e-42, -1e-42):
        x[rng.random(n) < 0.02] = value
    return x


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


def agree(codec: Any, x: np.ndarray, key: counter.Key, start: int, threads: int, seed: int) -> None:
    """Encoding and all three ways of decoding, guarded by bytes that must not change."""
    codecs.set_threads(threads)
    size = codec.body_range(x.size)[1]
    expected, guarded = np.empty(size, np.uint8), np.full(size + 128, 0xA5, np.uint8)
    assert reference.encode(codec, x, expected, key, start) == size
    assert native.encode(codec, x, guarded[64 : 64 + size], key, start) == size
    body = guarded[64 : 64 + size]
    assert np.array_equal(body, expected)
    assert (guarded[:64] == 0xA5).all() and (guarded[64 + size :] == 0xA5).all()
    head = bytes(range(24))
    assert native.checksum(head, body) == container.checksum(head, body)
    for mode in MODES:
        before = gradient(x.size, seed + 1)
        wanted, room = before.copy(), np.full(x.size + 32, 7.0, np.float32)
        out = room[16 : 16 + x.size]
        out[:] = before
        reference.decode(codec, expected, wanted, mode)
        native.decode(codec, expected, out, mode)  # of its exact size: a sanitizer sees what is read behind it
        assert same_bits(wanted, out), mode
        assert (room[:16] == 7).all() and (room[16 + x.size :] == 7).all()


@RELAXED
@given(
    SIZES, STARTS, KEYS, st.integers(1, 4), st.integers(0, 999), st.sampled_from([1e-36, 1e-3, 1.0, 1e30]), st.floats(0.1, 2)
)
@pytest.mark.everyday(IN_USE, others="long")
@example(3 * CHUNK + 1, 2**32 - CHUNK - 17, counter.Key(1, 2), 4, 0, 1.0, 0.5)
def test_ternary_is_the_reference(isa, n, start, key, threads, seed, magnitude, clip):
    x = gradient(n, seed, magnitude)
    largest = float(np.abs(x).max(initial=0))
    agree(Ternary(scale=largest), x, key, start, threads, seed)
    agree(Ternary(scale=float(np.float32(largest * clip))), x, key, start, threads, seed)
    agree(ternary._Bounded(scale=largest, bound=float(np.float32(largest * 0.3))), x, key, start, threads, seed)


@pytest.mark.everyday(IN_USE, others="long")
@RELAXED
@given(SIZES, st.one_of(st.integers(1, 40), st.integers(1, 32767)), st.integers(1, 4), st.integers(0, 999))
def test_sums_are_the_reference(isa, n, workers, threads, seed):
    x = np.random.default_rng(seed).integers(-workers, workers + 1, n).astype(np.float32)
    agree(TernarySum(workers=workers, scale=0.37), x, counter.Key(0, 0), 0, threads, seed)


@pytest.mark.everyday(IN_USE, others="long")
@RELAXED
@given(SIZES, st.integers(1, 4), st.integers(0, 999))
def test_fp32_and_bf16_are_the_reference(isa, n, threads, seed):
    x = np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    x[~np.isfinite(x)] = 1.5  # sums of two NaN may keep either
    for codec in (Fp32(), Bf16()):
        with np.errstate(over="ignore", invalid="ignore"):
            agree(codec, x, counter.Key(0, 0), 0, threads, seed)


@pytest.mark.parametrize("n", [1, 5, 16, 64, 1000])
def test_bf16_rounds_ties_and_keeps_what_is_no_number(isa, n):
    words = [
        0x7F800000,
        0xFF800000,
        0x7F800001,
        0x7FC00000,
        0xFFC12345,
        0x7FFFFFFF,
        0x7F7FFFFF,
        0x3F808000,
        0x3F818000,
        0x80000001,
    ]
    x = np.resize(np.array(words, np.uint32), n).view(np.float32)
    expected, got = np.empty(2 * n, np.uint8), np.empty(2 * n, np.uint8)
    reference.encode(Bf16(), x, expected, counter.Key(0, 0), 0)
    native.encode(Bf16(), x, got, counter.Key(0, 0), 0)
    assert np.array_equal(got, expected)
    for codec, body in ((Bf16(), got), (Fp32(), x.view(np.uint8))):
        wanted, out = np.empty(n, np.float32), np.empty(n, np.float32)
        reference.decode(codec, body, wanted, SET)
        native.decode(codec, body, out, SET)
        assert same_bits(wanted, out)


@RELAXED
@given(SIZES, st.integers(0, 3 * CHUNK), st.integers(1, 4), st.integers(0, 999), st.sampled_from([0.0, 1.0, 1e6]))
def test_peak_and_sums_are_the_reference(isa, n, more, threads, seed, offset):
    codecs.set_threads(threads)
    x = (gradient(n + more, seed) + np.float32(offset)).astype(np.float32)
    assert native.sums(x) == moments.sums(x)
    assert native.peak(x) == np.abs(x).max(initial=0)


def test_sums_of_blocks_of_blocks():
    x = np.resize(gradient(99_991, 8), 4096 * 4096 + 5)
    assert native.sums(x) == moments.sums(x)


def test_sums_of_a_constant_and_of_few(isa):
    assert native.sums(np.empty(0, np.float32)) == moments.sums(np.empty(0, np.float32)) == (0, 0, 0)
    assert native.sums(np.full(70_000, -0.1, np.float32)) == (np.float32(0.1), 0, 0)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_noticed_wherever_it_is(isa, bad):
    for n in (1, 17, 64, 129, CHUNK + 65):
        for at in {0, n // 2, n - 1}:
            x = gradient(n, 3)
            x[at] = bad
            assert not np.isfinite(native.peak(x)) and not np.isfinite(native.sums(x)[0])
            assert not codecs.moments_of(x).finite
            for options in ({}, {"scale": 1.0}, {"clip": 2.5}):
                with pytest.raises(ValueError, match="send this tensor dense"):
                    codecs.encode(codecs.get("ternary", **options), x, backend="native")


@RELAXED
@given(st.binary(max_size=300), st.binary(min_size=24, max_size=24), st.integers(0, 7))
def test_checksums_of_any_bytes(isa, data, head, offset):
    body = np.frombuffer(b"." * offset + data, np.uint8)[offset:]
    assert native.checksum(head, body) == container.checksum(head, body)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_checksum_of_large_words(isa, threads):
    codecs.set_threads(threads)
    body = np.full(4 * 3 * CHUNK + 3, 255, np.uint8)
    assert native.checksum(b"\xff" * 24, body) == container.checksum(b"\xff" * 24, body)


@RELAXED
@given(st.integers(0, 300), st.integers(0, 999), st.booleans())
def test_any_body_is_decoded_as_by_the_reference_or_refused(isa, n, seed, plausible):
    rng = np.random.default_rng(seed)
    for codec in (Ternary(scale=0.5), *(TernarySum(workers=w, scale=0.5) for w in (1, 2, 3, 4, 300))):
        body = rng.integers(0, 256, codec.body_range(n)[0], dtype=np.uint8)
        if plausible:
            body &= rng.integers(0, 256, body.size, dtype=np.uint8) & rng.integers(0, 256, body.size, dtype=np.uint8)
        wanted, out = np.ones(n, np.float32), np.ones(n, np.float32)
        try:
            reference.decode(codec, body, wanted, ADD)
        except PayloadError as error:
            with pytest.raises(PayloadError, match=str(error)[:20]):
                native.decode(codec, body, out, ADD)
            assert (out == 1).all()
        else:
            native.decode(codec, body, out, ADD)
            assert same_bits(wanted, out)


@pytest.mark.parametrize("codec", [Fp32(), Bf16(), Ternary(scale=1.0), TernarySum(workers=3)], ids=lambda c: c.name)
def test_a_body_of_another_length_is_refused(isa, codec):
    out = np.ones(100, np.float32)
    right = codec.body_range(100)[0]
    for size in (0, 1, right - 1, right + 1):
        with pytest.raises(PayloadError):
            native.decode(codec, np.zeros(size, np.uint8), out, ADD)
        with pytest.raises(ValueError):
            native.encode(codec, out, np.zeros(size, np.uint8), counter.Key(0, 0), 0)
    assert (out == 1).all()


def test_a_sum_out_of_range_is_refused(isa):
    for bad in (4, -4, 2e9, -2e9, np.inf, np.nan):
        for at in (0, 63, 64, 99):
            x = np.zeros(100, np.float32)
            x[at] = bad
            with pytest.raises(ValueError, match="beyond 3 workers"):
                codecs.encode(TernarySum(workers=3), x, backend="native")


def test_an_out_that_is_no_plain_memory_gets_the_same_values():
    payload = codecs.encode(codecs.get("ternary"), gradient(100, 1))
    plain, strided, wide = np.zeros(100, np.float32), np.zeros(200, np.float32), np.zeros(100)
    for out in (plain, strided[::2], wide):
        codecs.decode(payload, out, ADD)
    assert same_bits(plain, strided[::2].copy()) and np.array_equal(plain, wide)
    plain.flags.writeable = False
    with pytest.raises((TypeError, ValueError)):
        codecs.decode(payload, plain)


@pytest.mark.parametrize("name", ["fp32", "bf16", "ternary", "inceptionn", "inceptionn-scaled"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_warm_call_allocates_nothing_of_the_tensors_size(name, threads):
    codecs.set_threads(threads)
    codec, x = codecs.get(name), gradient(4 * CHUNK, 0)
    room, out = np.empty(codecs.max_payload_bytes(codec, x.size), np.uint8), np.empty_like(x)

    def step() -> None:
        payload = codecs.encode(codec, x, counter.key(1, 2, 3), out=room, backend="native")
        codecs.decode(payload, out, backend="native")
        codecs.decode(payload, out, codecs.ADD, backend="native")

    def resident() -> int:
        if not Path("/proc/self/statm").exists():  # macOS
            return 0
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(3):
        step()
    tracemalloc.start()
    before = resident()
    for _ in range(20):
        step()
    peak = tracemalloc.get_traced_memory()[1]
    grown = resident() - before
    tracemalloc.stop()
    assert peak < 16_384, "headers and handles, no arrays"
    assert grown < x.nbytes / 2


def test_threads_may_call_at_once():
    codecs.set_threads(2)
    codec, x = Ternary(), gradient(5 * CHUNK, 0)
    expected, wrong = codecs.encode(codec, x, backend="native"), []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(codecs.encode(codec, x, backend="native"), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="needs a run without AddressSanitizer: the lock of its allocator may be held at the moment of the fork",
)
def test_a_forked_process_has_its_own_pool():
    code = """
import os, numpy as np
from paceline import codecs
codecs.set_threads(3)
codec, x = codecs.get("ternary"), np.linspace(-1, 1, 400_000, dtype=np.float32)
expected = codecs.encode(codec, x, backend="native")
pid = os.fork()
good = np.array_equal(codecs.encode(codec, x, backend="native"), expected)
if pid == 0:
    os._exit(0 if good else 3)
assert good and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_the_instruction_set_can_be_lowered_and_not_raised():
    assert _native.isa() in ISAS
    *lower, highest = _native.isas()
    assert {*lower, highest} <= set(ISAS)
    fix = f"{', '.join(lower)} or {highest}" if lower else highest
    for name in {"avx2", "avx512", "neon", "sse9"} - {*lower, highest}:
        with pytest.raises(ValueError, match=f"this processor has no instruction set '{name}'; give {fix}$"):
            _native.set_isa(name)
    assert _native.set_isa("baseline") == "baseline" == _native.isa()
    _native.set_isa(highest)


@pytest.mark.everyday("avx2", "", "sse9")
@pytest.mark.parametrize("wanted", [*ISAS, "", "sse9"])
def test_the_environment_names_the_instruction_set(wanted):
    code = "from paceline.codecs import native; print(native.isa())"
    done = python(code, PACELINE_ISA=wanted)
    known = wanted in _native.isas()
    assert done.stdout.strip() == (wanted if known else _native.isas()[-1])
    assert ("PACELINE_ISA" in done.stderr) == bool(wanted and not known)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = os.pathsep.join([str(Path(codecs.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": source, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=given)


def test_the_scale_is_rounded_to_fp32_before_it_is_used():
    x = gradient(1000, 4)
    a, b = (codecs.encode(codecs.get("ternary", scale=0.1), x, backend=backend) for backend in ("native", "reference"))
    assert a.tobytes() == b.tobytes() and struct.unpack("<f", a[16:20].tobytes()) == (np.float32(0.1),)
