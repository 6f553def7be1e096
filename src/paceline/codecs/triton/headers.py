"""Header and checksums on the GPU, without waiting for it: ``container.checksum`` in two kernels (docs/wire-format.md)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from paceline.codecs import container
from paceline.codecs.container import HEADER_BYTES
from paceline.codecs.triton.launch import WRITTEN, aligned, run, signed, tiles

_WORDS = 4096  # of one program; its weighted sum stays below 2**32 * 4096**2 / 2, in 64 bits
_LANES = 1024
_HEAD = struct.Struct("<6i")


@triton.jit
def _partial(body, most, length, partials, DEVICE_LENGTH: tl.constexpr, WORDS: tl.constexpr):
    """Return both checksums of one program's words, modulo 2**32. The body's first word has position 7, after the six of the
    header."""
    n = tl.load(length) if DEVICE_LENGTH else most
    first = tl.program_id(0).to(tl.int64) * WORDS
    k = tl.arange(0, WORDS)
    here = (body + 4 * first).to(tl.pointer_type(tl.uint32))
    words = tl.load(here + k, mask=k < n // 4 - first, other=0).to(tl.int64)
    b = tl.arange(0, 4)
    last = n // 4
    rest = tl.load(body + 4 * last + b, mask=b < n % 4, other=0).to(tl.int64) << (8 * b)
    word = tl.sum(rest, axis=0)  # of the bytes behind the last whole word
    mine = (first <= last) & (last < first + WORDS)
    words += tl.where(mine & (k == last - first), word, 0)
    plain = tl.sum(words, axis=0)
    weighted = tl.sum(words * k, axis=0) + ((first + 7) & 0xFFFFFFFF) * (plain & 0xFFFFFFFF)
    tl.store(partials + 2 * tl.program_id(0), plain & 0xFFFFFFFF)
    tl.store(partials + 2 * tl.program_id(0) + 1, weighted & 0xFFFFFFFF)


@triton.jit
def _total(partials, count, LANES: tl.constexpr):
    k = tl.arange(0, LANES)
    plain = tl.zeros((LANES,), tl.int64)
    weighted = tl.zeros((LANES,), tl.int64)
    for at in range(0, count, LANES):
        plain += tl.load(partials + 2 * (at + k), mask=at + k < count, other=0)
        weighted += tl.load(partials + 2 * (at + k) + 1, mask=at + k < count, other=0)
    return tl.sum(plain, axis=0), tl.sum(weighted, axis=0)


@triton.jit(do_not_specialize=["count", "plain", "weighted", "a", "b", "c", "d", "e", "f", "states"])
def _seal(partials, count, plain, weighted, a, b, c, d, e, f, header, findings, states, LANES: tl.constexpr):
    """Write the 32 bytes of a header: six words, and the checksums of them (``plain``, ``weighted``) and of the body.

    A wrong checksum is written if any of ``states`` states has a closed gate or a refusal: what is made of bad data is bad.
    """
    plain_sum, weighted_sum = _total(partials, count, LANES)
    k = tl.arange(0, LANES)
    bad = tl.zeros((LANES,), tl.int64)
    for at in range(0, states, LANES):
        bad |= tl.load(findings + 3 * (at + k), mask=at + k < states, other=0)
        bad |= tl.load(findings + 3 * (at + k) + 1, mask=at + k < states, other=0)
    plain_sum += (tl.max(bad, axis=0) > 0).to(tl.int64)
    word = header.to(tl.pointer_type(tl.int32))
    tl.store(word, a)
    tl.store(word + 1, b)
    tl.store(word + 2, c)
    tl.store(word + 3, d)
    tl.store(word + 4, e)
    tl.store(word + 5, f)
    tl.store(word + 6, ((plain_sum + plain) & 0xFFFFFFFF).to(tl.int32))
    tl.store(word + 7, ((weighted_sum + weighted) & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def _differs(words, place, expected):
    """Return 1 if the word at ``place`` has other bits than ``expected``, else 0."""
    return ((tl.load(words + place).to(tl.int64) ^ expected) & 0xFFFFFFFF) != 0


@triton.jit(do_not_specialize=["count", "plain", "weighted", "a", "b", "c", "d", "e", "f"])
def _judge_header(partials, count, plain, weighted, a, b, c, d, e, f, header, state, LANES: tl.constexpr):
    """Close the gate if a header's words or checksums differ from the expected ones (as of ``_seal``)."""
    plain_sum, weighted_sum = _total(partials, count, LANES)
    words = header.to(tl.pointer_type(tl.int32))
    wrong = _differs(words, 0, a) | _differs(words, 1, b) | _differs(words, 2, c) | _differs(words, 3, d)
    wrong = wrong | _differs(words, 4, e) | _differs(words, 5, f)
    wrong = wrong | _differs(words, 6, plain_sum + plain) | _differs(words, 7, weighted_sum + weighted)
    tl.store(state, wrong.to(tl.int64))


@triton.jit(do_not_specialize=["count", "plain", "weighted"])
def _judge(partials, count, plain, weighted, state, LANES: tl.constexpr):
    """Close the gate if the checksums of the body differ from the expected ones."""
    plain_sum, weighted_sum = _total(partials, count, LANES)
    wrong = (((plain_sum - plain) & 0xFFFFFFFF) != 0) | (((weighted_sum - weighted) & 0xFFFFFFFF) != 0)
    tl.store(state, wrong.to(tl.int64))


def seal(
    payload: torch.Tensor, head: bytes, body: torch.Tensor, written: int | None, state: torch.Tensor, findings: Any = None
) -> None:
    """Write the header of ``payload``, whose body is in ``body`` (aligned): ``written`` bytes, or the number in the state.

    Args:
        findings: states (n, 3). If any of them has a closed gate or a refusal, the checksum is made wrong.
    """
    most = body.shape[0] if written is None else written
    partials = _partials(body, most, None if written is not None else state[WRITTEN:])
    plain, weighted = (signed(s) for s in container.checksum(head, np.empty(0, np.uint8)))
    header = aligned(payload[:HEADER_BYTES])
    states = 0 if findings is None else findings.shape[0]
    known = state if findings is None else findings
    words = _HEAD.unpack(head)
    run(_seal, 1, partials, partials.shape[0], plain, weighted, *words, header, known, states, LANES=_LANES)
    if header.data_ptr() != payload.data_ptr():
        payload[:HEADER_BYTES].copy_(header)


def judge_whole(payload: torch.Tensor, head: bytes, body: torch.Tensor, state: torch.Tensor) -> None:
    """Close the state's gate unless ``payload``, whose body is in ``body`` (aligned), has this ``head`` and its checksums."""
    plain, weighted = (signed(s) for s in container.checksum(head, np.empty(0, np.uint8)))
    header = aligned(payload[:HEADER_BYTES])
    if header.data_ptr() != payload.data_ptr():
        header.copy_(payload[:HEADER_BYTES])
    partials = _partials(body, body.shape[0], None)
    run(_judge_header, 1, partials, partials.shape[0], plain, weighted, *_HEAD.unpack(head), header, state, LANES=_LANES)


def judge(head: bytes, body: torch.Tensor, sums: tuple[int, int], state: torch.Tensor) -> None:
    """Close the state's gate unless header and ``body`` (aligned) have the checksums ``sums``."""
    own = container.checksum(head, np.empty(0, np.uint8))
    plain, weighted = (signed(wanted - mine) for wanted, mine in zip(sums, own, strict=True))
    partials = _partials(body, body.shape[0], None)
    run(_judge, 1, partials, partials.shape[0], plain, weighted, state, LANES=_LANES)


def checksum(head: bytes, body: torch.Tensor) -> tuple[int, int]:
    """Compute ``container.checksum`` of a body on the GPU. Waits for 32 bytes."""
    header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=body.device)
    room = aligned(body)
    if room is not body:
        room.copy_(body)
    seal(header, head, room, body.shape[0], header)
    first, second = struct.unpack_from("<II", header.cpu().numpy().tobytes(), 24)
    return first, second


def _partials(body: torch.Tensor, most: int, length: Any) -> torch.Tensor:
    programs = tiles(tiles(most, 4), _WORDS)
    partials = torch.empty((programs, 2), dtype=torch.int64, device=body.device)
    run(
        _partial,
        programs,
        body,
        most,
        body if length is None else length,
        partials,
        DEVICE_LENGTH=length is not None,
        WORDS=_WORDS,
    )
    return partials
