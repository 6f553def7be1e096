"""Both passes by Triton kernels, for dense fp32 tensors of an NVIDIA GPU, with one launch per pass for all tensors.

Every tensor is cut into blocks, one program each, which finds its tensor in a table of addresses. For the trust ratio a third
kernel adds the sums of the blocks in a fixed order. Nothing waits for the GPU: whether the step is
skipped is a number on the device, behind which the second pass's stores are masked.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.codecs.triton.launch import run, tiles
from paceline.training.optimizers.bundle import Bundle, dense
from paceline.training.optimizers.norms import squares

BLOCK = 2048
"""Elements of one program."""
_ROW = 256  # blocks that are added up at a time


@triton.jit
def _place(tensors, starts, sizes, BLOCK: tl.constexpr):
    """Return this program's tensor, offsets into it, and a mask of its elements."""
    tensor = tl.load(tensors + tl.program_id(0))
    k = tl.load(starts + tl.program_id(0)) + tl.arange(0, BLOCK)
    return tensor, k, k < tl.load(sizes + tensor)


@triton.jit
def _pointer_at(addresses, tensor):
    return tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))


@triton.jit
def _add_up(values, sums, row, programs):
    tl.store(sums + row * programs + tl.program_id(0), tl.sum(values * values, axis=0))


@triton.jit
def _totals(partials, firsts, sums, n, programs, ROW: tl.constexpr):
    """Sum a tensor's blocks in order, with one program per tensor and row."""
    row, tensor = tl.program_id(0) // n, tl.program_id(0) % n
    end = tl.load(firsts + tensor + 1)
    total = tl.zeros((ROW,), tl.float64)
    for first in range(tl.load(firsts + tensor), end, ROW):
        k = first + tl.arange(0, ROW)
        total += tl.load(partials + row * programs + k, mask=k < end, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0).to(tl.float32))


@triton.jit
def _lars_sums(w, g, tensors, starts, sizes, scale, partials, programs, decay, BLOCK: tl.constexpr):
    tensor, k, own = _place(tensors, starts, sizes, BLOCK)
    weight = tl.load(_pointer_at(w, tensor) + k, mask=own, other=0.0)
    gradient = tl.load(_pointer_at(g, tensor) + k, mask=own, other=0.0) * tl.load(scale)
    _add_up(weight, partials, 0, programs)
    _add_up(gradient + decay * weight, partials, 1, programs)


@triton.jit
def _lars_step(
    w, g, v, tensors, starts, sizes, scale, finite, gain, rate, decay, momentum, BLOCK: tl.constexpr, NESTEROV: tl.constexpr
):
    tensor, k, own = _place(tensors, starts, sizes, BLOCK)
    own = own & (tl.load(finite) != 0)
    weight = tl.load(_pointer_at(w, tensor) + k, mask=own, other=0.0)
    gradient = tl.load(_pointer_at(g, tensor) + k, mask=own, other=0.0) * tl.load(scale)
    change = (gradient + decay * weight) * tl.load(gain + tensor)
    buffer = momentum * tl.load(_pointer_at(v, tensor) + k, mask=own, other=0.0) + change
    tl.store(_pointer_at(v, tensor) + k, buffer, mask=own)
    if NESTEROV:
        buffer = change + momentum * buffer
    tl.store(_pointer_at(w, tensor) + k, weight - tl.load(rate) * buffer, mask=own)


@triton.jit
def _lamb(w, g, m, v, scale, correct1, correct2, tensor, k, own, beta1, rest1, beta2, rest2, eps, decay):
    """Return weight, gradient, new moments and update."""
    weight = tl.load(_pointer_at(w, tensor) + k, mask=own, other=0.0)
    gradient = tl.load(_pointer_at(g, tensor) + k, mask=own, other=0.0) * tl.load(scale)
    first = beta1 * tl.load(_pointer_at(m, tensor) + k, mask=own, other=0.0) + rest1 * gradient
    second = beta2 * tl.load(_pointer_at(v, tensor) + k, mask=own, other=0.0) + rest2 * (gradient * gradient)
    root = tl.sqrt_rn(second) * tl.load(correct2 + tensor) + eps
    # where there is no element, eps may be 0 too
    update = tl.div_rn(first * tl.load(correct1 + tensor), tl.where(own, root, 1.0)) + decay * weight
    return weight, gradient, first, second, update


@triton.jit
def _lamb_sums(
    w,
    g,
    m,
    v,
    tensors,
    starts,
    sizes,
    scale,
    correct1,
    correct2,
    partials,
    programs,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    decay,
    BLOCK: tl.constexpr,
):
    tensor, k, own = _place(tensors, starts, sizes, BLOCK)
    weight, gradient, _, _, update = _lamb(
        w, g, m, v, scale, correct1, correct2, tensor, k, own, beta1, rest1, beta2, rest2, eps, decay
    )
    _add_up(weight, partials, 0, programs)
    _add_up(update, partials, 1, programs)
    _add_up(gradient, partials, 2, programs)


@triton.jit
def _lamb_step(
    w,
    g,
    m,
    v,
    tensors,
    starts,
    sizes,
    scale,
    correct1,
    correct2,
    finite,
    rate,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    decay,
    BLOCK: tl.constexpr,
):
    tensor, k, own = _place(tensors, starts, sizes, BLOCK)
    own = own & (tl.load(finite) != 0)
    weight, _, first, second, update = _lamb(
        w, g, m, v, scale, correct1, correct2, tensor, k, own, beta1, rest1, beta2, rest2, eps, decay
    )
    tl.store(_pointer_at(m, tensor) + k, first, mask=own)
    tl.store(_pointer_at(v, tensor) + k, second, mask=own)
    tl.store(_pointer_at(w, tensor) + k, weight - tl.load(rate + tensor) * update, mask=own)


class _Blocks(NamedTuple):
    """Blocks of all tensors, in order, on the device."""

    tensors: Tensor  # int32, of each block
    starts: Tensor  # int64, its first element
    sizes: Tensor  # int64, of each tensor
    firsts: Tensor  # int64, first block of each tensor, and the number of all


class Tables(NamedTuple):
    """Addresses of a bundle's tensors, for both passes of one step."""

    blocks: _Blocks
    addresses: tuple[Tensor, ...]  # int64, shape (n,), of weights, gradients and each word of state
    scale: Tensor

    @property
    def programs(self) -> int:
        """Number of blocks of all tensors."""
        return len(self.blocks.tensors)

    @property
    def places(self) -> tuple[Tensor, ...]:
        """First arguments of every kernel."""
        return (*self.addresses, *self.blocks[:3], self.scale)


def serves(weight: Tensor, words: list[Tensor]) -> bool:
    """Return whether the kernels support this tensor and its state."""
    return weight.is_cuda and weight.dtype == torch.float32 and dense(weight, words)


def gradient_squares(bundle: Bundle) -> Tensor:
    """Return sums of squares of the gradients, shape (n,)."""
    return squares(bundle.scaled(slice(None)), torch.float32)


def lars_sums(bundle: Bundle, joint: bool) -> Tensor:
    """Run pass 1 of LARS: squares of w and of g, or with ``joint`` of g + decay * w; fp32, shape (2, n)."""
    with _device(bundle):
        tables = bundle.tables = _tables(bundle)
        w, g, _, *places = tables.places
        partials = torch.empty(2, tables.programs, dtype=torch.float32, device=bundle.device)
        decay = bundle.decay if joint else 0.0
        run(_lars_sums, tables.programs, w, g, *places, partials, tables.programs, decay, BLOCK=BLOCK)
        return _sums(tables, partials)


def lars_step(bundle: Bundle, gain: Tensor, rate: Tensor, finite: Tensor) -> None:
    """Run pass 2 of LARS unless ``finite`` is false: v <- momentum * v + gain * (g + decay * w); w <- w - rate * v."""
    with _device(bundle):
        tables: Tables = bundle.tables
        run(
            _lars_step,
            tables.programs,
            *tables.places,
            finite.to(torch.int32),
            _narrow(gain),
            _narrow(rate),
            bundle.decay,
            float(bundle.group["momentum"]),
            BLOCK=BLOCK,
            NESTEROV=bool(bundle.group["nesterov"]),
        )


def lamb_sums(bundle: Bundle) -> Tensor:
    """Run pass 1 of LAMB: squares of w, of the update and of g; fp32, shape (3, n)."""
    with _device(bundle):
        tables = bundle.tables = _tables(bundle)
        partials = torch.empty(3, tables.programs, dtype=torch.float32, device=bundle.device)
        run(
            _lamb_sums,
            tables.programs,
            *tables.places,
            *map(_narrow, bundle.corrections),
            partials,
            tables.programs,
            *_numbers(bundle),
            BLOCK=BLOCK,
        )
        return _sums(tables, partials)


def lamb_step(bundle: Bundle, rate: Tensor, finite: Tensor) -> None:
    """Run pass 2 of LAMB unless ``finite`` is false: new moments; w <- w - rate * u."""
    with _device(bundle):
        tables: Tables = bundle.tables
        run(
            _lamb_step,
            tables.programs,
            *tables.places,
            *map(_narrow, bundle.corrections),
            finite.to(torch.int32),
            _narrow(rate),
            *_numbers(bundle),
            BLOCK=BLOCK,
        )


def _numbers(bundle: Bundle) -> tuple[float, ...]:
    beta1, beta2 = bundle.group["betas"]
    return (beta1, 1 - beta1, beta2, 1 - beta2, float(bundle.group["eps"]), bundle.decay)


def _narrow(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float32).contiguous()


def _sums(tables: Tables, partials: Tensor) -> Tensor:
    rows, n = len(partials), len(tables.blocks.sizes)
    sums = torch.empty(rows, n, dtype=torch.float32, device=partials.device)
    run(_totals, rows * n, partials, tables.blocks.firsts, sums, n, tables.programs, ROW=_ROW)
    return sums


def _tables(bundle: Bundle) -> Tables:
    lists = [bundle.weights, bundle.gradients, *bundle.words]
    host = torch.tensor([[t.data_ptr() for t in tensors] for tensors in lists], dtype=torch.int64)
    on_gpu = bundle.device.type == "cuda"
    # from pinned memory, so that the host does not wait
    addresses = host.pin_memory().to(bundle.device, non_blocking=True) if on_gpu else host
    scale = (
        bundle.scale
        if isinstance(bundle.scale, Tensor)
        else torch.full((), bundle.scale, dtype=torch.float32, device=bundle.device)
    )
    return Tables(_blocks(tuple(w.numel() for w in bundle.weights), bundle.device), addresses.unbind(), _narrow(scale))


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...], device: torch.device) -> _Blocks:
    counts = torch.tensor([tiles(size, BLOCK) for size in sizes], dtype=torch.int64)
    firsts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    tensors = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    starts = BLOCK * (torch.arange(len(tensors)) - firsts[tensors])
    tables = (tensors.to(torch.int32), starts, torch.tensor(sizes, dtype=torch.int64), firsts)
    return _Blocks(*(table.to(device) for table in tables))


def _device(bundle: Bundle) -> AbstractContextManager[Any]:
    """Make the device of the tensors current, because kernels start there. The tests' interpreter works on the CPU."""
    return torch.cuda.device(bundle.device) if bundle.device.type == "cuda" else nullcontext()
