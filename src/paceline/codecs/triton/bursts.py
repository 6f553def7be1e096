"""INCEPTIONN's bursts on the GPU. Encoding computes the bytes of every tile, their running sum, then all tiles at once.
Decoding follows the bursts of each chunk, one thread a chunk, to find where each starts. Then it decodes all bursts at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline.codecs import counter
from paceline.codecs.reference import bursts
from paceline.codecs.reference.inceptionn import PowerBound
from paceline.codecs.reference.inceptionn_scaled import BLOCK, InceptionnScaled
from paceline.codecs.triton.device_functions import put, refuse
from paceline.codecs.triton.inceptionn import coded, power, published, scaled
from paceline.codecs.triton.launch import TILE, run, tiles

_CHUNKS = 8  # walked by one program


@triton.jit
def _tile(x, n, k, SCALED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return this program's tags, lanes and bytes as (bursts, 8), a mask of sent bursts, exponents, and values."""
    first = tl.program_id(0).to(tl.int64) * TILE
    i = tl.arange(0, TILE)
    values = tl.load(x + first + i, mask=i < n - first, other=0.0)
    tags, lanes, e = coded(values, k, SCALED, BLOCK, TILE)
    tags = tags.reshape(TILE // 8, 8)
    sent = tl.max(e.reshape(TILE // 8, 8), axis=1) != -32768
    sent = sent & (tl.arange(0, TILE // 8) * 8 < n - first)
    return tags, lanes.reshape(TILE // 8, 8), tags + (tags == 3).to(tl.int32), sent, e, values


@triton.jit
def _measure(x, exponents, sizes, n, k, state, SCALED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Compute the bytes of each tile's bursts and, if SCALED, the exponents of its blocks."""
    _tags, _lanes, payload, sent, e, values = _tile(x, n, k, SCALED, BLOCK, TILE)
    tl.store(sizes + tl.program_id(0), tl.sum(tl.sum(payload, axis=1) + 2 * sent.to(tl.int32), axis=0).to(tl.int64))
    if SCALED:
        refuse(state, (values.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= 0x7F800000)
        first = tl.program_id(0).to(tl.int64) * TILE
        block = tl.arange(0, TILE // BLOCK)
        own = tl.max(e.reshape(TILE // BLOCK, BLOCK), axis=1)
        places = exponents.to(tl.pointer_type(tl.int16)) + first // BLOCK + block
        tl.store(places, own.to(tl.int16), mask=block * BLOCK < n - first)


@triton.jit
def _write(
    x,
    body,
    sizes,
    ends,
    n,
    k,
    start,
    state,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the bursts of each tile after those of earlier tiles, and the directory's entry of each chunk."""
    tags, lanes, payload, sent, _, _ = _tile(x, n, k, SCALED, BLOCK, TILE)
    tile = tl.program_id(0).to(tl.int64)
    length = tl.load(sizes + tile)
    end = tl.load(ends + tile)
    here = body + start + end - length
    size = tl.sum(payload, axis=1) + 2 * sent.to(tl.int32)
    at = tl.cumsum(size, axis=0) - size
    vector = tl.sum(tags << (2 * tl.arange(0, 8))[None, :], axis=1)
    tl.store(here + at, (vector & 255).to(tl.uint8), mask=sent)
    tl.store(here + at + 1, (vector >> 8).to(tl.uint8), mask=sent)
    after = (at + 2)[:, None] + tl.cumsum(payload, axis=1)  # where each payload ends
    for b in tl.static_range(4):
        tl.store(here + after + (b - 4), ((lanes >> (8 * b)) & 255).to(tl.uint8), mask=sent[:, None] & (payload >= 4 - b))
    part = tl.arange(0, CHUNK // TILE)
    leads = tile % (CHUNK // TILE) == 0
    chunk = tl.sum(tl.load(sizes + tile + part, mask=leads & (tile + part < tl.num_programs(0)), other=0), axis=0)
    tl.store(body.to(tl.pointer_type(tl.int32)) + tile // (CHUNK // TILE), chunk.to(tl.int32), mask=leads)
    tl.store(state + 2, start + end, mask=tile == tl.num_programs(0) - 1)


@triton.jit
def _chunk(ends, chunk, start, size, mask, MOST: tl.constexpr):
    """Find start and length of each chunk; 0 for a missing chunk, to prevent reads outside the body."""
    begin = start + tl.load(ends + chunk - 1, mask=mask & (chunk > 0), other=0)
    length = start + tl.load(ends + chunk, mask=mask, other=0) - begin
    possible = (length >= 0) & (length <= MOST) & (begin + length <= size)
    return tl.where(possible, begin, 0), tl.where(possible, length, 0).to(tl.int32), possible


@triton.jit
def _walk(
    body,
    exponents,
    ends,
    starts,
    n,
    chunks,
    most,
    start,
    size,
    state,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST: tl.constexpr,
    LANES: tl.constexpr,
):
    """Find the start of each burst within its chunk; refuse chunks that their bursts do not fill."""
    chunk = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = chunk < chunks
    begin, length, possible = _chunk(ends, chunk, start, size, live, MOST)
    here = body + begin
    last = start + tl.load(ends + chunks - 1)
    bad = (live & (possible == 0)) | (last != size)
    at = tl.zeros((LANES,), tl.int32)
    for burst in range(0, most):
        there = live & (chunk * CHUNK + burst * 8 < n)
        if SCALED:
            block = chunk * (CHUNK // BLOCK) + burst * 8 // BLOCK
            e = tl.load(exponents.to(tl.pointer_type(tl.int16)) + block, mask=there, other=0)
            there = there & (e != -32768)
        tl.store(starts + chunk * (CHUNK // 8) + burst, at, mask=there)
        fits = at + 2 <= length
        bad = bad | (there & (fits == 0))
        there = there & fits
        low = tl.load(here + at, mask=there, other=0).to(tl.int32)
        high = tl.load(here + at + 1, mask=there, other=0).to(tl.int32)
        # Bytes of tags 0 to 3 are 0, 1, 2, 4: four tags of each half side by side in nibbles, then added up.
        vector = low | (high << 8)
        even, odd = vector & 0x3333, (vector >> 2) & 0x3333
        even, odd = even + (even & (even >> 1) & 0x1111), odd + (odd & (odd >> 1) & 0x1111)
        four = even + odd
        two = (four & 0x0F0F) + ((four >> 4) & 0x0F0F)
        at += tl.where(there, 2 + ((two + (two >> 8)) & 255), 0)
    refuse(state, bad | (live & (at != length)))


@triton.jit
def _read(
    body,
    exponents,
    ends,
    starts,
    out,
    n,
    k,
    start,
    size,
    state,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Decode the values of each tile's bursts."""
    tile = tl.program_id(0).to(tl.int64)
    first = tile * TILE
    begin, length, possible = _chunk(ends, first // CHUNK, start, size, first < n, MOST)
    here = body + begin
    burst = tl.arange(0, TILE // 8)
    there = possible & (burst * 8 < n - first)
    if SCALED:
        own = exponents.to(tl.pointer_type(tl.int16)) + first // BLOCK
        e = tl.load(own + burst * 8 // BLOCK, mask=burst * 8 < n - first, other=-32768).to(tl.int32)
        refuse(state, (e != -32768) & ((e < -148) | (e > 128)))
        there = there & (e != -32768)
    at = tl.load(starts + first // 8 + burst, mask=there, other=0)
    there = there & (at + 2 <= length)
    low = tl.load(here + at, mask=there, other=0).to(tl.int32)
    high = tl.load(here + at + 1, mask=there, other=0).to(tl.int32)
    tags = ((low | (high << 8))[:, None] >> (2 * tl.arange(0, 8))[None, :]) & 3
    payload = tags + (tags == 3).to(tl.int32)
    after = (at + 2)[:, None] + tl.cumsum(payload, axis=1)
    lanes = tl.zeros((TILE // 8, 8), tl.uint32)
    for b in tl.static_range(4):
        inside = (payload >= 4 - b) & (after + (b - 4) < length)
        lanes |= tl.load(here + after + (b - 4), mask=inside, other=0).to(tl.uint32) << (8 * b)
    i = tl.arange(0, TILE)
    flat = tags.reshape(TILE)
    refuse(state, (i >= n - first) & (flat != 0))  # values behind the last one
    if SCALED:
        wide = tl.broadcast_to(e[:, None], (TILE // 8, 8)).reshape(TILE)
        possible_e = (wide >= -148) & (wide <= 128)
        values, wrong = scaled(flat, lanes.reshape(TILE), tl.where(possible_e, wide, 0), k)
        refuse(state, wrong & (wide != -32768))
        peak = tl.max(tl.abs(values).reshape(TILE // BLOCK, BLOCK), axis=1).to(tl.float64)
        of_block = tl.max(wide.reshape(TILE // BLOCK, BLOCK), axis=1)
        reached = (of_block < -148) | (of_block > 128) | (peak >= power(tl.minimum(tl.maximum(of_block, -148), 128) - 1))
        refuse(state, reached == 0)
    else:
        values, wrong = published(flat, lanes.reshape(TILE), k)
        refuse(state, wrong)
    put(out + first, i, values, (i < n - first) & (tl.load(state) == 0), MODE)


def _start(codec: PowerBound, n: int) -> tuple[bool, int, int]:
    """Return whether the codec has exponents, where they start, and where the bursts start."""
    at = bursts.ENTRY_BYTES * bursts.count_chunks(n)
    return isinstance(codec, InceptionnScaled), at, codec.body_range(n)[0] if isinstance(codec, InceptionnScaled) else at


def encode(
    codec: PowerBound, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor
) -> int | None:
    """Encode bursts; see ``triton.Kernels``."""
    n = x.shape[0]
    if n == 0:
        return 0
    is_scaled, exponents_at, bursts_at = _start(codec, n)
    sizes = torch.empty(tiles(n), dtype=torch.int64, device=x.device)
    run(_measure, tiles(n), x, body[exponents_at:], sizes, n, codec.k, state, SCALED=is_scaled, BLOCK=BLOCK, TILE=TILE)
    run(
        _write,
        tiles(n),
        x,
        body,
        sizes,
        sizes.cumsum(0),
        n,
        codec.k,
        bursts_at,
        state,
        SCALED=is_scaled,
        BLOCK=BLOCK,
        CHUNK=bursts.CHUNK,
        TILE=TILE,
    )
    return None


def decode(codec: PowerBound, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode bursts; see ``triton.Kernels``."""
    n, chunks = out.shape[0], bursts.count_chunks(out.shape[0])
    if n == 0:
        return
    is_scaled, exponents_at, bursts_at = _start(codec, n)
    # A clone is aligned to 4 bytes of its storage, as a view of other words requires.
    entries = body[: bursts.ENTRY_BYTES * chunks].clone().view(torch.int32)
    ends = (entries.long() & 0xFFFFFFFF).cumsum(0)
    in_chunk = bursts.CHUNK // bursts.WIDTH
    starts = torch.empty(chunks * in_chunk, dtype=torch.int32, device=body.device)
    most_bytes = bursts.body_range(bursts.CHUNK, 4)[1] - bursts.ENTRY_BYTES
    shared = {"SCALED": is_scaled, "BLOCK": BLOCK, "CHUNK": bursts.CHUNK, "MOST": most_bytes}
    exponents, size, most = body[exponents_at:], body.shape[0], min(bursts.count_bursts(n), in_chunk)
    run(
        _walk,
        tiles(chunks, _CHUNKS),
        body,
        exponents,
        ends,
        starts,
        n,
        chunks,
        most,
        bursts_at,
        size,
        state,
        **shared,
        LANES=_CHUNKS,
        num_warps=1,
    )
    run(
        _read,
        tiles(n),
        body,
        exponents,
        ends,
        starts,
        out,
        n,
        codec.k,
        bursts_at,
        size,
        state,
        **shared,
        MODE=mode,
        TILE=TILE,
    )
