"""The GPU's kernels against the reference, bit for bit. Run by test_triton.py: on a GPU, and in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline import codecs
from paceline.codecs import ADD, SET, SUBTRACT, PayloadError, arrays, backends, container, counter, reference
from paceline.codecs import triton as gpu
from paceline.codecs.reference import bursts
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.codecs.reference.fp8 import Fp8
from paceline.codecs.reference.inceptionn import Inceptionn
from paceline.codecs.reference.inceptionn_scaled import InceptionnScaled
from paceline.codecs.reference.integer import Int4, Int8
from paceline.codecs.reference.sign import Sign
from paceline.codecs.reference.ternary import Ternary, TernarySum, _Bounded
from paceline.codecs.reference.topk import TopK
from paceline.codecs.triton import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
KEY = counter.key(1, 2, 3)
SIZES = (0, 1, 63, 64, 205, launch.TILE + 201) if DEVICE == "cuda" else (0, 1, 205, launch.TILE + 201)
GUARD = 0xA5
MIXED = [
    Fp32(),
    Bf16(),
    Ternary(scale=2.0),
    Ternary(scale=1e-36),
    _Bounded(scale=3.0, bound=0.7),
    TernarySum(workers=1),
    TernarySum(workers=40, scale=0.37),
    TernarySum(workers=32767, scale=3.1),
    Int8(),
    Int4(),
    Sign(),
    Int8(block=64),
    Int4(block=64),
    Sign(block=64),
    Fp8(),
    Fp8(block=64),
    Inceptionn(),
    Inceptionn(bound=2.0**-15),
    InceptionnScaled(),
    InceptionnScaled(bound=2.0**-14),
    InceptionnScaled(bound=0.5),
    TopK(),
    TopK(density=0.3, value_bits=16),
    TopK(density=0.0001),
    TopK(density=0.001, value_bits=16),
]


QUEUED = [Fp32(), Bf16(), Ternary(scale=1.0), TernarySum(workers=3, scale=3.0), Int8(), Int4(block=64), Sign()]
QUEUED += [Inceptionn(), InceptionnScaled(), TopK(density=0.1, value_bits=16)]
QUEUED_SIZES = (0, 1, 63, 64, 65, 1023, 1024, 1025, launch.TILE - 1, launch.TILE, launch.TILE + 1)
"""Nothing, one element, and the edges of bit planes, of blocks and of programs."""


@pytest.fixture(autouse=True)
def tensors_stay_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter tensors of the CPU stand for the GPU's: they must not become arrays."""
    monkeypatch.setattr(backends, "triton", lambda: gpu)
    if DEVICE == "cpu":
        monkeypatch.setattr(arrays, "on_host", lambda tensor: False)


def gradient(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Heavy-tailed, with zeros of both signs and subnormal numbers."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, n) * scale).astype(np.float32)
    for value in (0.0, -0.0, 1e-42, -1e-42):
        x[rng.random(n) < 0.02] = value
    return x


def values_for(kind: Any, n: int, seed: int = 0) -> np.ndarray:
    if isinstance(kind, TernarySum):
        most = kind.workers
        return np.random.default_rng(seed).integers(-most, most + 1, n).astype(np.float32)
    return gradient(n, seed)


def tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(DEVICE)


def words(x: Any) -> np.ndarray:
    return (x.cpu().numpy() if torch.is_tensor(x) else x).view(np.uint32)


def reference_body(kind: Any, x: np.ndarray, key: counter.Key = KEY, start: int = 0) -> np.ndarray:
    body = np.empty(kind.body_range(x.size)[1], np.uint8)
    return body[: reference.encode(kind, x, body, key, start)]


def agree(
    kind: Any, x: np.ndarray, key: counter.Key = KEY, start: int = 0, modes: tuple[int, ...] = (SET, ADD, SUBTRACT)
) -> None:
    """Body, length, checksum and decoding, between bytes that must not change."""
    wanted, most = reference_body(kind, x, key, start), kind.body_range(x.size)[1]
    room = torch.full((most + 128,), GUARD, dtype=torch.uint8, device=DEVICE)
    assert gpu.encode(kind, tensor(x), room[64 : 64 + most], key, start) == wanted.size
    host = room.cpu().numpy()
    assert np.array_equal(host[64 : 64 + wanted.size], wanted)
    assert (host[:64] == GUARD).all() and (host[64 + most :] == GUARD).all()
    body, head = room[64 : 64 + wanted.size], bytes(range(24))
    assert gpu.checksum(head, body) == container.checksum(head, wanted)
    for mode in modes:
        before = gradient(x.size, 5)
        out = before.copy()
        guarded = torch.full((x.size + 32,), 7.0, device=DEVICE)
        guarded[16 : 16 + x.size] = tensor(before)
        with np.errstate(over="ignore", invalid="ignore"):
            reference.decode(kind, wanted, out, mode)
        gpu.decode(kind, body, guarded[16 : 16 + x.size], mode)
        assert np.array_equal(words(guarded[16 : 16 + x.size]), words(out)), mode
        assert (guarded[:16] == 7).all() and (guarded[16 + x.size :] == 7).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", MIXED, ids=str)
def test_the_reference_s_bits(kind, n):
    agree(kind, values_for(kind, n, n), modes=(SET, ADD, SUBTRACT) if n in (1, 205) else (SET,))


@pytest.mark.parametrize("kind", [Int8(block=4096), Int4(block=4096), Sign(block=4096)], ids=str)
def test_blocks_larger_than_a_tile(kind):
    for n in (4096, 3 * 4096 + 77):
        agree(kind, gradient(n, n), modes=(SET,))


@pytest.mark.parametrize("kind", [Int8(), Int4(block=64), Sign(), InceptionnScaled(bound=2.0**-14)], ids=str)
def test_every_magnitude(kind):
    """Blocks of zeros, of subnormal numbers, of the largest: each with its own scale."""
    blocks = [np.zeros(1024, np.float32)]
    scales = (1e-45, 1e-42, 1.2e-38, 1e-30, 1e-19, 1.0, 1e30, 3.4e38)
    for seed, scale in enumerate(scales if DEVICE == "cuda" else (1e-45, 1e-19, 3.4e38)):
        share = np.random.default_rng(seed).uniform(-1, 1, 1024)
        blocks.append((share * scale).astype(np.float32))
    agree(kind, np.concatenate(blocks)[:-3], modes=(SET,))


@pytest.mark.parametrize("kind", [Inceptionn(), InceptionnScaled()], ids=str)
def test_several_chunks(kind, monkeypatch):
    if DEVICE == "cpu":  # the interpreter takes milliseconds a burst
        monkeypatch.setattr(bursts, "CHUNK", launch.TILE)
    x = gradient(bursts.CHUNK + 1500, 1)
    x[1024:2048] = 0
    agree(kind, x, modes=(SET,))
    body = reference_body(kind, x)
    for at in (11, body.size - 1):
        damaged = body.copy()
        damaged[at] ^= 0x81
        hostile(kind, damaged, x.size)


def hostile(kind: Any, body: np.ndarray, count: int) -> None:
    """What the reference says of a body, the GPU says too; and nothing beside ``out`` is written."""
    wanted = np.empty(count, np.float32)
    room = torch.full((count + 32,), 7.0, device=DEVICE)
    try:
        reference.decode(kind, body, wanted, SET)
    except PayloadError:
        with pytest.raises(PayloadError):
            gpu.decode(kind, tensor(body), room[16:-16], SET)
    else:
        gpu.decode(kind, tensor(body), room[16:-16], SET)
        assert np.array_equal(words(room[16:-16]), words(wanted))
    assert (room[:16] == 7).all() and (room[-16:] == 7).all()


@pytest.mark.parametrize("kind", MIXED, ids=str)
def test_any_bytes(kind):
    rng = np.random.default_rng(0)
    for n in (1, 77):
        good = reference_body(kind, values_for(kind, n, n))
        least, most = kind.body_range(n)
        bodies = [np.full(most, 255, np.uint8), np.zeros(least, np.uint8), rng.integers(0, 256, least, dtype=np.uint8)]
        for _ in range(4):
            damaged = good.copy()
            damaged[rng.integers(good.size)] ^= 1 << rng.integers(8)
            bodies.append(damaged)
        for body in bodies:
            with np.errstate(all="ignore"):
                hostile(kind, body, n)


@pytest.mark.parametrize("start", [1, 2**31 - 100, 2**32 - 1, 2**32 - launch.TILE - 17, 2**32, 3 * 2**32 - 1000, 2**48 + 5])
def test_draws_of_any_index(start):
    for key in (KEY, counter.Key(1, 1), counter.Key(2**32 - 1, 2**31)):
        agree(Ternary(scale=1.5), gradient(launch.TILE + 100), key, start, ())
    agree(Int8(), gradient(launch.TILE + 100), KEY, start, ())


def test_what_is_no_number():
    special = [
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
    odd = np.array(special, np.uint32).view(np.float32)
    for kind in (Fp32(), Bf16()):
        body = torch.empty(kind.body_range(10)[1], dtype=torch.uint8, device=DEVICE)
        gpu.encode(kind, tensor(odd), body, KEY, 0)
        assert np.array_equal(body.cpu().numpy(), reference_body(kind, odd))


@pytest.mark.parametrize("kind", [k for k in MIXED if not isinstance(k, Fp32 | Bf16 | Inceptionn)], ids=str)
def test_values_without_a_form_are_refused(kind):
    for value, at in ((np.nan, 0), (-np.nan, 2199), (np.inf, 2199), (-np.inf, 1), (40000.0, 5)):
        x = np.zeros(2200, np.float32)
        x[at] = value
        if np.isfinite(value) and not isinstance(kind, TernarySum):
            continue
        with pytest.raises(ValueError):
            codecs.encode(kind, tensor(x))


def queued_agree(kind: Any, x: np.ndarray, offset: int = 0) -> None:
    """The path of exchanges, which never waits: the CPU's payload, and its values from the payload."""
    wanted, out = codecs.encode(kind, x, KEY, 5), gradient(x.size, 5)
    least, most = (container.HEADER_BYTES + size for size in kind.body_range(x.size))
    states = torch.zeros((2, 3), dtype=torch.int64, device=DEVICE)
    room = torch.full((offset + most,), GUARD, dtype=torch.uint8, device=DEVICE)
    written = gpu.queue_write(kind, tensor(x), room[offset:], KEY, 5, states[0], states[:1])
    size = container.HEADER_BYTES + int(states[0, 2] if written is None else written)
    assert size == wanted.size and (written is None) == (least < most and x.size > 0)
    assert np.array_equal(room[offset : offset + size].cpu().numpy(), wanted)
    target = tensor(out)
    gpu.queue_read(kind, room[offset : offset + size], target, ADD, states[1])
    codecs.decode(wanted, out, ADD)
    assert np.array_equal(words(target), words(out)) and not states[:, :2].any()


@pytest.mark.parametrize("n", QUEUED_SIZES)
@pytest.mark.parametrize("kind", QUEUED, ids=str)
def test_queued_messages_are_the_cpu_s(kind, n):
    queued_agree(kind, values_for(kind, n, n), offset=n % 3)


@pytest.mark.parametrize("kind", [k for k in QUEUED if not isinstance(k, TernarySum)], ids=str)
@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1e30])
def test_queued_messages_of_tiny_and_huge_values(kind, scale):
    with np.errstate(over="ignore"):
        queued_agree(kind, np.clip(gradient(77, 1, scale), -(2.0**100), 2.0**100).astype(np.float32))


@pytest.mark.parametrize("kind", QUEUED, ids=str)
def test_queued_checks_close_on_every_part_of_a_message(kind):
    """Another header, checksum, length or body: nothing is written, and later messages cannot be read."""
    x = values_for(kind, 70, 1)
    payload = tensor(codecs.encode(kind, x, KEY, 5))
    for at in (0, 5, 6, 9, 17, 24, 28, 31, 32, payload.shape[0] - 1):
        states = torch.zeros((3, 3), dtype=torch.int64, device=DEVICE)
        changed, out = payload.clone(), torch.ones(70, device=DEVICE)
        changed[at] ^= 8
        gpu.queue_read(kind, changed, out, SET, states[0])
        assert states[0, 0] == 1 and (out == 1).all(), at
        later = torch.empty_like(payload)
        gpu.queue_write(Fp32(), tensor(x), later.new_empty(32 + 280), KEY, 0, states[1], states[:2])
        spoiled = later.new_empty(codecs.max_payload_bytes(kind, 70))
        written = gpu.queue_write(kind, tensor(x), spoiled, KEY, 5, states[1], states[:2])
        size = 32 + int(states[1, 2] if written is None else written)
        gpu.queue_read(kind, spoiled[:size], out, SET, states[2])
        assert states[2, 0] == 1 and (out == 1).all()
        with pytest.raises(PayloadError):
            codecs.decode(spoiled[:size].cpu().numpy())


@pytest.mark.parametrize("n", [0, 1, 4097])
def test_queued_moments(n):
    bad = np.array([1, np.nan, 2], np.float32), np.array([-np.inf], np.float32)
    parts = [gradient(n, n) + np.float32(3), np.full(n, 0.1, np.float32), *bad]
    table = gpu.queue_moments([tensor(x) for x in parts]).cpu().numpy()
    for found, x in zip(table, parts, strict=True):
        with np.errstate(invalid="ignore"):
            wanted = np.array(codecs.moments_of(x), np.float32)
        assert np.array_equal(found, wanted, equal_nan=True)
        for clip in (None, 2.5):
            own = Ternary(clip=clip).prepare_each(*torch.from_numpy(found.copy()))
            if np.isfinite(wanted[1]):
                assert np.float32(own) == np.float32(Ternary(clip=clip).prepare(codecs.moments_of(x)))


@pytest.mark.parametrize("n", [1, 5, 4097, 70000])
def test_moments_in_their_fixed_order(n):
    for x in (gradient(n, n) + np.float32(3), np.full(n, 0.1, np.float32))[: 1 if n > 5000 else 2]:
        assert gpu.sums(tensor(x)) == reference.sums(x)
        assert gpu.peak(tensor(x)) == reference.peak(x)


def test_moments_of_nothing_and_of_what_is_no_number():
    nothing = tensor(np.empty(0, np.float32))
    assert gpu.peak(nothing) == 0 and gpu.sums(nothing) == (0, 0, 0)
    for value in (np.nan, -np.inf):
        x = gradient(50)
        x[49] = value
        assert not np.isfinite(gpu.peak(tensor(x))) and not np.isfinite(gpu.sums(tensor(x))[0])


@pytest.mark.parametrize("size", [0, 1, 3, 4, 4095, 4 * 4096, 4 * 4096 + 3, 40001])
def test_checksums(size):
    body = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    head = bytes(range(200, 224))
    assert gpu.checksum(head, tensor(body)) == container.checksum(head, body)


PUBLIC = [*(codecs.get(name) for name in codecs.names() if name != "bf16-coded"), codecs.get("ternary", clip=2.5)]
"""Codecs that have kernels on a GPU."""


@pytest.mark.parametrize("kind", PUBLIC, ids=str)
@pytest.mark.parametrize("n", [0, 601])
def test_payloads_are_the_cpu_s(kind, n):
    x = gradient(n, 3)
    mine, theirs = (
        codecs.encode(kind, tensor(x), counter.key(4, 5, 6), start=7),
        codecs.encode(kind, x, counter.key(4, 5, 6), start=7),
    )
    assert torch.is_tensor(mine) and np.array_equal(mine.cpu().numpy(), theirs)
    assert np.array_equal(words(codecs.decode(mine)), words(codecs.decode(theirs)))
    out, wanted = tensor(gradient(n, 8)), gradient(n, 8)
    codecs.decode(mine, out, codecs.ADD)
    codecs.decode(theirs, wanted, codecs.ADD)
    assert np.array_equal(words(out), words(wanted))


@pytest.mark.parametrize("kind", PUBLIC, ids=str)
@pytest.mark.parametrize("offset", [1, 8])
def test_payloads_at_crooked_addresses(kind, offset):
    x = gradient(300)
    room = torch.full((offset + codecs.max_payload_bytes(kind, 300) + 1,), GUARD, dtype=torch.uint8, device=DEVICE)
    payload = codecs.encode(kind, tensor(x), out=room[offset:-1])
    assert payload.data_ptr() == room.data_ptr() + offset
    assert (
        np.array_equal(payload.cpu().numpy(), codecs.encode(kind, x)) and (room[:offset] == GUARD).all() and room[-1] == GUARD
    )
    assert np.array_equal(words(codecs.decode(payload)), words(codecs.decode(codecs.encode(kind, x))))


def test_a_changed_payload_leaves_out_as_it_was():
    payload = codecs.encode(codecs.get("ternary"), tensor(gradient(3000)))
    for at in (12, 24, 31, 32, len(payload) - 1):
        changed = payload.clone()
        changed[at] ^= 4
        out = torch.ones(3000, device=DEVICE)
        with pytest.raises(PayloadError):
            codecs.decode(changed, out, ADD)
        assert (out == 1).all()


def test_bodies_that_no_encoder_writes():
    negative_zero, count = np.zeros(16, np.uint8), 64
    negative_zero[11] = 1
    for kind, body in ((Ternary(scale=1.0), negative_zero), (TernarySum(workers=1), np.full(16, 255, np.uint8))):
        with pytest.raises(PayloadError):
            reference.decode(kind, body, np.empty(count, np.float32), SET)
        with pytest.raises(PayloadError):
            gpu.decode(kind, tensor(body), torch.empty(count, device=DEVICE), SET)


def test_out_of_another_kind():
    kind, x = Ternary(scale=1.0), gradient(1000)
    payload = codecs.encode(kind, tensor(x))
    strided = torch.zeros(2000, device=DEVICE)[::2]
    double = torch.zeros(1000, dtype=torch.float64, device=DEVICE)
    for out in (strided, double):
        codecs.decode(payload, out, codecs.ADD)
        assert np.array_equal(out.cpu().numpy(), codecs.decode(codecs.encode(kind, x)))
    with pytest.raises(ValueError, match="on the device of what is read"):
        codecs.decode(payload, np.zeros(1000, np.float32))
    with pytest.raises(ValueError):
        codecs.decode(payload, torch.zeros(999, device=DEVICE))
