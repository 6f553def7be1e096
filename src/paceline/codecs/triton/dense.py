"""GPU kernels of the codecs fp32 and bf16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline.codecs import counter
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.codecs.triton.device_functions import put
from paceline.codecs.triton.launch import TILE, run, tiles


@triton.jit
def _fp32_encode(x, body, n, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    mask = k < n - first
    bits = tl.load(x.to(tl.pointer_type(tl.int32)) + first + k, mask=mask, other=0)
    tl.store(body.to(tl.pointer_type(tl.int32)) + first + k, bits, mask=mask)


@triton.jit
def _bf16_encode(x, body, n, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    mask = k < n - first
    bits = tl.load(x.to(tl.pointer_type(tl.uint32)) + first + k, mask=mask, other=0)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    tl.store(body.to(tl.pointer_type(tl.uint16)) + first + k, tl.where(nan, 0x7FC0, rounded).to(tl.uint16), mask=mask)


@triton.jit
def _decode(body, out, n, state, HALF: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    mask = (k < n - first) & (tl.load(state) == 0)
    if HALF:
        bits = tl.load(body.to(tl.pointer_type(tl.uint16)) + first + k, mask=mask, other=0).to(tl.uint32) << 16
    else:
        bits = tl.load(body.to(tl.pointer_type(tl.uint32)) + first + k, mask=mask, other=0)
    put(out + first, k, bits.to(tl.float32, bitcast=True), mask, MODE)


def encode(codec: Fp32 | Bf16, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode fp32 or bf16; see ``triton.Kernels``."""
    n = x.shape[0]
    run(_bf16_encode if isinstance(codec, Bf16) else _fp32_encode, tiles(n), x, body, n, TILE=TILE)
    return body.shape[0]


def decode(codec: Fp32 | Bf16, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode fp32 or bf16; see ``triton.Kernels``."""
    n = out.shape[0]
    run(_decode, tiles(n), body, out, n, state, HALF=isinstance(codec, Bf16), MODE=mode, TILE=TILE)
