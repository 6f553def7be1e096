"""One exchange of several tensors' gradients: gather, agree, compress, exchange, scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from paceline.codecs import Codec, backends, counter, ternary, vector
from paceline.codecs.dense import Bf16, Fp32
from paceline.strategy import CHUNK_ELEMENTS, carrier, shard_bounds
from paceline.training.collectives import Wire
from paceline.training.consistency import EnergyGuard
from paceline.training.encoded_streams import CodecStream, Stream, TernaryStream
from paceline.training.error_feedback import Feedback
from paceline.training.exchanges import exchange_streams
from paceline.training.gradient_sample import Sample
from paceline.training.tensor_layout import Layout, Part, gather, scatter

LARGEST = 2.0**100
"""Magnitude of a gradient that a codec is given at most: larger ones go dense, as their sums and residuals might overflow."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How gradients travel.

    Attributes:
        world: all workers: they agree on scalers, and on whether all gradients are fit for the codec.
        codec: of the compressed tensors; a ``ternary`` one is TernGrad, with shared scalers and exact sums.
        exchange: a name in ``exchanges.CHUNKED``: between all ranks, or between nodes where there is an ``inner`` wire.
        feedback: None for codecs that are right on average, and for the faithful INCEPTIONN, which has none.
        clip: of TernGrad, in standard deviations.
        compress_pull: whether owners send their sums encoded, or as fp32 as the aggregators of the papers do.
        guard: watches what share of the gradient's energy a biased codec without feedback keeps.
    """

    codec: Codec
    exchange: str
    world: Wire
    outer: Wire
    inner: Wire | None = None
    feedback: Feedback | None = None
    clip: float | None = None
    compress_pull: bool = True
    guard: EnergyGuard | None = None
    sample: Sample = field(default_factory=Sample)

    def device(self, gradients: torch.device) -> torch.device:
        """Where codecs run: beside the gradients where there are kernels for it, else in host memory."""
        here = gradients.type == "cpu" or (backends.triton() is not None and backends.triton().serves(self.codec))
        return gradients if here else torch.device("cpu")

    @property
    def workers(self) -> int:
        """Ranks whose gradients are averaged."""
        return self.outer.world_size * (self.inner.world_size if self.inner else 1)


def exchange_group(
    plan: Plan, layout: Layout, parts: Mapping[str, torch.Tensor], flat: torch.Tensor, seed: int, step: int, dense: bool
) -> bool:
    """Replace every gradient by its mean over the workers.

    Args:
        parts: the gradients by tensor name, each flat.
        flat: fp32 workspace of ``room(plan, layout)`` elements.
        dense: send everything as fp32, as the rest of a step with a NaN or an infinity is.

    Returns:
        Whether the group went dense, or should have: a gradient of any rank is NaN, infinite or too large for a codec.
    """
    meter, inner = plan.outer.meter, plan.inner
    packed, kept = flat[: _padded(plan, layout.compressed)], flat[_padded(plan, layout.compressed) :]
    compressed, others = layout.parts(parts)
    with meter.span("gather", "codec"):
        gather(others, kept)
        if inner is not None:
            gather(compressed, packed)
    if inner is None:
        done = _between_nodes(plan, layout, compressed, packed, kept, 0, seed, step, dense)
        with meter.span("scatter", "codec"):
            scatter(packed, compressed, plan.workers, done.units)
    else:
        packed[layout.compressed :].zero_()
        kept[layout.total - layout.compressed :].zero_()
        mine, own = (
            inner.reduce_scatter(whole.new_empty(whole.numel() // inner.world_size), whole, "inner_reduce").wait()
            for whole in (packed, kept)
        )
        start, stop = share(plan, layout)
        sums = [Part(p, mine[p.start : p.stop]) for p in layout.packed(start, stop)]
        alone = plan.outer.world_size == 1  # one node: there is nothing to compress between
        done = _Sums(True)
        if not alone:
            done = _between_nodes(plan, layout, sums, mine[: stop - start], own, start, seed, step, dense)
        scatter(mine, sums, plan.workers, done.units)  # in place
        for whole, part in ((packed, mine), (kept, own)):
            inner.all_gather(whole, part, "inner_gather").wait()
        if alone:
            done = _Sums(is_finite(packed) and is_finite(kept))
        scatter(packed, compressed, 1)
    with meter.span("scatter", "codec"):
        scatter(kept, others, plan.workers)
        plan.sample.finish(parts)
    return dense or not done.finite


def share(plan: Plan, layout: Layout) -> tuple[int, int]:
    """``(start, stop)`` of the compressed elements that this rank sends: all, or those of its place in the node."""
    if plan.inner is None:
        return 0, layout.compressed
    size = _padded(plan, layout.compressed) // plan.inner.world_size
    return min(size * plan.inner.rank, layout.compressed), min(size * (plan.inner.rank + 1), layout.compressed)


def room(plan: Plan, layout: Layout) -> int:
    """Elements of the workspace: compressed and dense ones, each in equal shares for the ranks of a node."""
    return _padded(plan, layout.compressed) + _padded(plan, layout.total - layout.compressed)


def _padded(plan: Plan, count: int) -> int:
    if plan.inner is None:
        return count
    return shard_bounds(count, "sharded", plan.inner.world_size)[0][1] * plan.inner.world_size


class _Sums(NamedTuple):
    """Whether every gradient of every rank was finite, and what 1 stands for in each tensor's sum; nothing where it is 1."""

    finite: bool
    units: Sequence[float] = ()


def _between_nodes(
    plan: Plan,
    layout: Layout,
    gradients: Sequence[Part],
    packed: torch.Tensor,
    kept: torch.Tensor,
    start: int,
    seed: int,
    step: int,
    dense: bool,
) -> _Sums:
    """Put the sums of the gradients, which begin at ``start`` of the layout, into ``packed``; ``kept`` become their sums."""
    wire, meter = plan.outer, plan.outer.meter
    terngrad = isinstance(plan.codec, ternary.Ternary)
    with meter.span("scale", "codec"):
        moments = [_moments(gradient.float()) for _, gradient in gradients] if terngrad else []
        fit = not dense and is_finite(kept)
        fit = fit and all(m.peak <= LARGEST for m in moments)
        fit = fit and (terngrad or all(_peak(gradient.float()) <= LARGEST for _, gradient in gradients))
        names = [piece.tensor.name for piece, _ in gradients] if terngrad else []
        bounds = {n: float(ternary.clip_bound(m, plan.clip)) for n, m in zip(names, moments, strict=True)}
    # fp32 and bf16 carry NaN and infinity as they are.
    lossless = isinstance(plan.codec, Fp32 | Bf16) or not layout.compressed
    unusable, scales = 0.0, dict(bounds)
    if not lossless:
        every = [piece.tensor.name for piece in layout.packed(0, layout.compressed)] if terngrad else []
        numbers = [float(not fit), *(bounds.get(name, 0.0) if fit else 0.0 for name in every)]
        shared = torch.tensor(numbers, dtype=torch.float32, device=wire.device)
        unusable, *agreed = plan.world.all_reduce(shared, dist.ReduceOp.MAX, "scales").wait().tolist()
        scales = dict(zip(every, agreed, strict=True))
    if unusable:
        gather(gradients, packed)
        _run(plan, wire, (_dense(packed), False), (_dense(kept), False))
        return _Sums(False)

    first = layout.first + start
    key = counter.key(seed, step, wire.rank)
    units: Sequence[float] = ()
    with meter.span("prepare", "codec"):
        if terngrad:
            limits = [(bounds[piece.tensor.name], scales[piece.tensor.name]) for piece, _ in gradients]
            plan.sample.take(gradients, moments, limits, key, first, step)
            units = _normalise(gradients, packed, limits)
            compressed: Stream = TernaryStream(packed, key, first)
        elif plan.feedback is not None:
            owed = plan.feedback.compensate(layout, start, gradients, packed)
            compressed = CodecStream(plan.codec, packed, key, first, *owed)
        else:
            gather(gradients, packed)
            if plan.guard is not None:
                plan.guard.watch(plan.codec, gradients, step)
            compressed = CodecStream(plan.codec, packed, key, first)
    _run(plan, wire, (compressed, True), (_dense(kept), False))
    with meter.span("finish", "codec"):
        return _Sums(not lossless or (is_finite(packed) and is_finite(kept)), units)


def _dense(values: torch.Tensor) -> Stream:
    return CodecStream(Fp32(), values, counter.Key(0, 0), 0)


def _run(plan: Plan, wire: Wire, *streams: tuple[Stream, bool]) -> None:
    ways = [(stream, carrier(plan.exchange, coded)) for stream, coded in streams]
    exchange_streams(ways, wire, CHUNK_ELEMENTS, plan.compress_pull)


def is_finite(values: torch.Tensor) -> bool:
    """Whether every element is; the sum alone tells it unless it overflows."""
    return bool(torch.isfinite(values.sum()) or torch.isfinite(values).all())


def _peak(values: torch.Tensor) -> float:
    """The largest magnitude; NaN where there is one."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def _moments(values: torch.Tensor) -> ternary.Moments:
    if values.device.type == "cpu":
        return ternary.moments(vector(values))
    sigma = values.double().std(correction=0)
    return ternary.Moments(np.float32(float(sigma)), np.float32(float(values.abs().max())))


def _normalise(gradients: Sequence[Part], packed: torch.Tensor, limits: Sequence[tuple[float, float]]) -> Sequence[float]:
    """Gather the gradients, each tensor clipped at its own bound and divided by the shared scaler: what 1 then stands for.

    The product with the reciprocal is one fp32 rounding; the codec's factor of 2**24 is exact, so its choice is that of
    ``ternarize`` with the tensor's own scaler.
    """
    for ((_, start, stop), gradient), (bound, scale) in zip(gradients, limits, strict=True):
        part = packed[start:stop]
        tiny = scale < ternary.TINY_SCALE
        torch.clamp(gradient.float().to(part.device), -bound, bound, out=part)
        part.mul_(0.0 if tiny else float(np.float32(1.0) / np.float32(scale)))
    return [scale for _, scale in limits]
