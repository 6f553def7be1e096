"""One exchange of several tensors' gradients: gather, agree, compress, exchange, scatter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from paceline.codecs import Codec, backends, counter, ternary, vector
from paceline.codecs.dense import Fp32
from paceline.strategy import CHUNK_ELEMENTS
from paceline.training.exchanges import exchange_streams
from paceline.training.feedback import Feedback
from paceline.training.guards import EnergyGuard
from paceline.training.sample import Sample
from paceline.training.streams import CodecStream, Stream, TernaryStream
from paceline.training.tensors import Layout, Piece
from paceline.training.wire import Wire


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How gradients travel.

    Attributes:
        codec: of the compressed tensors; a ``ternary`` one is TernGrad, with shared scalers and exact sums.
        exchange: a name in ``exchanges.CHUNKED``: between all ranks, or between nodes where there is an ``inner`` wire.
        feedback: None for codecs that are right on average, and for the faithful INCEPTIONN, which has none.
        pull: codec of the finished sums, where it is another; only for exchanges in which owners send them.
        clip: of TernGrad, in standard deviations.
        guard: watches what share of the gradient's energy a biased codec without feedback keeps.
    """

    codec: Codec
    exchange: str
    outer: Wire
    inner: Wire | None = None
    feedback: Feedback | None = None
    pull: Codec | None = None
    clip: float | None = None
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
        Whether the group went dense, or should have: a gradient of any rank is NaN or infinite.
    """
    meter, inner = plan.outer.meter, plan.inner
    with meter.span("gather", "codec"):
        flat[layout.total :].zero_()
        layout.gather(dict(parts), flat)
    start, stop = 0, layout.total
    mine = flat[: layout.total]
    if inner is not None:
        share = flat.numel() // inner.world_size
        start, stop = (min(share * (inner.rank + k), layout.total) for k in (0, 1))
        padded = inner.reduce_scatter(torch.empty(share, device=flat.device), flat, "inner_reduce").wait()
        mine = padded[: stop - start]

    dense |= not _between_nodes(plan, layout, mine, start, seed, step, dense)
    if inner is not None:
        inner.all_gather(flat, padded, "inner_gather").wait()
    with meter.span("scatter", "codec"):
        layout.scatter(flat, dict(parts))
        plan.sample.finish(parts)
    return dense


def room(plan: Plan, layout: Layout) -> int:
    """Elements of the workspace: a whole number for every rank of a node."""
    ranks = plan.inner.world_size if plan.inner else 1
    return -(-layout.total // ranks) * ranks


def _between_nodes(
    plan: Plan, layout: Layout, values: torch.Tensor, start: int, seed: int, step: int, dense: bool
) -> bool:
    """Replace ``values``, which begin at ``start`` of the layout, by the mean. Returns whether all gradients were finite."""
    wire, meter = plan.outer, plan.outer.meter
    if plan.inner is not None and wire.world_size == 1:  # one node: there is nothing to compress between
        values /= plan.workers
        return True
    packed = values[: max(0, min(layout.compressed - start, values.numel()))]
    pieces = list(layout.packed(start, start + values.numel()))
    terngrad = isinstance(plan.codec, ternary.Ternary)
    with meter.span("scale", "codec"):
        moments = [_moments(packed[p.start : p.stop]) for p in pieces] if terngrad else []
        finite = not dense and bool(torch.isfinite(values.sum()) or torch.isfinite(values).all())
        bounds = [float(ternary.clip_bound(m, plan.clip)) if finite else 0.0 for m in moments]
    shared = torch.tensor([float(not finite), *bounds], dtype=torch.float32, device=wire.device)
    unusable, *scales = wire.all_reduce(shared, dist.ReduceOp.MAX, "scales").wait().tolist()
    if unusable:
        exchange_streams([(_dense(values), _dense_exchange(plan.exchange))], wire, CHUNK_ELEMENTS)
        values /= plan.workers
        return False

    first = layout.first + start
    key = counter.key(seed, step, wire.rank)
    units = None
    residual = None
    with meter.span("prepare", "codec"):
        if terngrad:
            plan.sample.take(pieces, packed, moments, bounds, scales, key, first, step)
            units = _normalise(packed, pieces, bounds, scales)
            compressed: Stream = TernaryStream(packed, key, first, pull=plan.pull)
        else:
            if plan.guard is not None:
                plan.guard.watch(plan.codec, packed, pieces, step)
            if plan.feedback is not None:
                residual = plan.feedback.compensate(layout, packed, start)
            compressed = CodecStream(plan.codec, packed, key, first, residual, pull=plan.pull)
    kept = _dense(values[packed.numel() :])
    exchange_streams([(compressed, plan.exchange), (kept, _dense_exchange(plan.exchange))], wire, CHUNK_ELEMENTS)
    with meter.span("finish", "codec"):
        if units is not None:
            for piece, unit in zip(pieces, units, strict=True):
                packed[piece.start : piece.stop] *= unit / plan.workers
            values[packed.numel() :] /= plan.workers
        else:
            values /= plan.workers
        if plan.feedback is not None and residual is not None:
            plan.feedback.after(layout, residual, start)
    return True


def _dense(values: torch.Tensor) -> Stream:
    return CodecStream(Fp32(), values, counter.Key(0, 0), 0)


def _dense_exchange(name: str) -> str:
    """Sums of fp32 travel best to their owners; where everything goes to one server it stays so."""
    return name if name == "parameter_server" else "sharded"


def _moments(values: torch.Tensor) -> ternary.Moments:
    if values.device.type == "cpu":
        return ternary.moments(vector(values))
    sigma = values.double().std(correction=0)
    return ternary.Moments(np.float32(float(sigma)), np.float32(float(values.abs().max())))


def _normalise(values: torch.Tensor, pieces: list[Piece], bounds: list[float], scales: list[float]) -> Iterator[float]:
    """Clip each tensor at its own bound and divide it by the shared scaler. Returns what 1 then stands for.

    The product with the reciprocal is one fp32 rounding; the codec's factor of 2**24 is exact, so its choice is that of
    ``ternarize`` with the tensor's own scaler.
    """
    for piece, bound, scale in zip(pieces, bounds, scales, strict=True):
        part = values[piece.start : piece.stop]
        tiny = scale < ternary.TINY_SCALE
        part.clamp_(-bound, bound).mul_(0.0 if tiny else float(np.float32(1.0) / np.float32(scale)))
    return iter(scales)
