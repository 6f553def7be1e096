"""Exchange of several tensors' gradients: gather, agree, compress, exchange, scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from paceline.codecs import Codec, Key, backends, key
from paceline.codecs.codec import MessageScaling
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.strategy import Exchange, shard_bounds
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.gradients.agreement import Agreement, Shared, agree
from paceline.training.exchanges.gradients.energy_guard import EnergyGuard
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout, clip, gather, scatter
from paceline.training.exchanges.node_sums import all_gather, reduce_scatter
from paceline.training.exchanges.streams import integer_stream, ternary_stream
from paceline.training.exchanges.streams.card_stream import CardStream, CardWire
from paceline.training.exchanges.streams.encoded_streams import PLAIN, CodecStream, Stream
from paceline.training.exchanges.streams.integer_stream import IntegerStream
from paceline.training.exchanges.streams.ternary_stream import TernaryStream
from paceline.training.exchanges.wires.collectives import Wire


@dataclass(frozen=True, kw_only=True)
class ExchangeSetup:
    """Setup of an exchange of gradients.

    Attributes:
        world: the wire among all workers. They agree on scales, and on whether all gradients are fit for the codec.
        codec: the codec of the compressed tensors.
        exchange: one of ``exchanges.CHUNKED``, among all ranks, or between nodes if there is an ``inner`` wire.
        feedback: error feedback; None for unbiased codecs, and for INCEPTIONN as published.
        compress_pull: whether owners send their sums encoded, or as fp32 like the aggregators of the papers.
        dense: codec of elements that ``codec`` does not encode: dense tensors, sums that return uncompressed, a node's sums.
        guard: monitors the share of the gradient's energy that a biased codec without feedback keeps.
        card: the wire whose packets the network cards compress; None where the codec is not in them.

    Raises:
        ValueError: feedback with a codec whose ranks agree on scales, since the residual would have another scale.
    """

    codec: Codec
    exchange: Exchange
    world: Wire
    outer: Wire
    inner: Wire | None = None
    feedback: Feedback | None = None
    compress_pull: bool = True
    dense: Codec = PLAIN
    guard: EnergyGuard | None = None
    sample: Sample = field(default_factory=Sample)
    card: CardWire | None = None

    def __post_init__(self) -> None:
        if self.feedback is not None and self.codec.agrees:
            raise ValueError(f"{self.codec.name} with error feedback: the scale of its values changes in every step")

    def device(self, gradients: torch.device) -> torch.device:
        """Device of the codecs: that of the gradients if it has kernels, else the host."""
        kernels = backends.triton()
        here = gradients.type == "cpu" or (kernels is not None and kernels.serves(self.codec))
        return gradients if here else torch.device("cpu")

    @property
    def narrow(self) -> bool:
        """True if numbers that the codec does not encode are sent as bfloat16."""
        return isinstance(self.dense, Bf16)

    @property
    def workers(self) -> int:
        """Number of ranks whose gradients are averaged."""
        return self.outer.world_size * (self.inner.world_size if self.inner else 1)


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Inputs of one exchange.

    Attributes:
        parts: flat gradients by tensor name; the exchange replaces them by their means.
        workspace: fp32 buffer of ``room(setup, layout)`` elements.
        seed, step: seed and step of the stochastic rounding.
    """

    layout: Layout
    parts: Mapping[str, torch.Tensor]
    workspace: torch.Tensor
    seed: int
    step: int


def exchange_group(setup: ExchangeSetup, gradients: Gradients, dense: bool = False) -> bool:
    """Replace every gradient by its mean over the workers.

    Args:
        dense: send everything uncompressed, as in the rest of a step that had a NaN or an infinity.

    Returns:
        True if a gradient of any rank is NaN, infinite or too large for a codec, so that the group is dense.
    """
    meter, inner, layout = setup.outer.meter, setup.inner, gradients.layout
    packed, kept, *own = gradients.workspace.split(_rooms(setup, layout))
    compressed, others = layout.parts(gradients.parts)
    with meter.span("gather", "codec"):
        gather(others, kept)
        if inner is not None:
            gather(compressed, packed)
            _clear(packed, layout.gaps)
    if inner is None:
        sums = _between_nodes(setup, gradients, _Share(compressed, packed, kept, 0), dense)
        if not sums.divided:
            with meter.span("scatter", "codec"):
                if sums.finite:
                    _keep_rest(setup, layout, clip(packed, compressed, setup.workers, sums.units), 1)
                scatter(packed, compressed, setup.workers, sums.units)
    else:
        sums = _over_nodes(setup, gradients, (packed, kept), own, dense)
        if sums.finite:
            _keep_rest(setup, layout, clip(packed, compressed, 1), setup.workers)
        scatter(packed, compressed, 1)
    with meter.span("scatter", "codec"):
        scatter(kept, others, setup.workers)
        setup.sample.finish(gradients.parts)
    return dense or not sums.finite


def share(setup: ExchangeSetup, layout: Layout) -> tuple[int, int]:
    """Return ``(start, stop)`` of the compressed elements that this rank sends: all of them, or its share within the node."""
    if setup.inner is None:
        return 0, layout.compressed
    size = _padded(setup, layout.compressed, setup.codec.alignment) // setup.inner.world_size
    return min(size * setup.inner.rank, layout.compressed), min(size * (setup.inner.rank + 1), layout.compressed)


def room(setup: ExchangeSetup, layout: Layout) -> int:
    """Return the elements of the workspace: compressed and dense ones, each rounded up to equal shares of a node's ranks, and
    this rank's shares of both.
    """
    return sum(_rooms(setup, layout))


def _rooms(setup: ExchangeSetup, layout: Layout) -> list[int]:
    rest = layout.total - layout.compressed
    whole = [_padded(setup, layout.compressed, setup.codec.alignment), _padded(setup, rest, 1)]
    return whole if setup.inner is None else [*whole, *(count // setup.inner.world_size for count in whole)]


def _padded(setup: ExchangeSetup, count: int, block: int) -> int:
    if setup.inner is None:
        return count
    return shard_bounds(count, setup.inner.world_size, block=block)[0][1] * setup.inner.world_size


class _Share(NamedTuple):
    """Inputs of this rank to the exchange between nodes.

    Attributes:
        parts: gradients of compressed tensors, each with its position in ``packed``.
        packed: buffer for their sums.
        kept: elements of the dense tensors; becomes their sums.
        start: index of the first element of ``packed`` among the layout's compressed elements.
    """

    parts: Sequence[GradientSlice]
    packed: torch.Tensor
    kept: torch.Tensor
    start: int


class _Sums(NamedTuple):
    """Result of an exchange between nodes.

    Attributes:
        finite: whether every gradient of every rank was finite.
        units: the value of 1 in each tensor's sum; empty if that value is 1.
        divided: True if the parts already hold their means and ``packed`` is unused.
    """

    finite: bool
    units: Sequence[float] = ()
    divided: bool = False


def _keep_rest(setup: ExchangeSetup, layout: Layout, rest: Mapping[str, torch.Tensor], divisor: float) -> None:
    """Keep what was clipped from the sums, divided by ``divisor``, in the residuals.

    Error feedback adds up gradients until they are sent, so a mean may overflow in fp16 though no gradient does. Without
    feedback the rest is a rounding of the codec.
    """
    if rest and setup.feedback is not None:
        setup.feedback.clipped = True
        ranks = setup.outer.world_size  # that share the residual of an element
        sums = {name: values * (divisor / ranks) for name, values in rest.items()}
        setup.feedback.take_back(layout, *share(setup, layout), sums, next(iter(rest.values())).device)


def _over_nodes(
    setup: ExchangeSetup,
    gradients: Gradients,
    wholes: tuple[torch.Tensor, torch.Tensor],
    room: Sequence[torch.Tensor],
    dense: bool,
) -> _Sums:
    """Write the means into the compressed elements and the sums into the dense ones. Each rank exchanges its share of the
    node's sums, in the memory counted by ``room``.
    """
    (packed, kept), inner, layout = wholes, setup.inner, gradients.layout
    assert inner is not None
    packed[layout.compressed :].zero_()
    kept[layout.total - layout.compressed :].zero_()
    mine, own = (reduce_scatter(inner, part, whole, setup.narrow) for whole, part in zip(wholes, room, strict=True))
    start, stop = share(setup, layout)
    parts = [GradientSlice(p, mine[p.start : p.stop]) for p in layout.packed(start, stop)]
    alone = setup.outer.world_size == 1  # one node: nothing to compress
    sums = _Sums(True)
    if not alone:
        others = layout.total - layout.compressed
        first, last = shard_bounds(others, inner.world_size)[inner.rank]  # the padding stays in the node
        sums = _between_nodes(setup, gradients, _Share(parts, mine[: stop - start], own[: last - first], start), dense)
    if not sums.divided:
        scatter(mine, parts, setup.workers, sums.units)  # in place
    for whole, part in ((packed, mine), (kept, own)):
        all_gather(inner, whole, part, setup.narrow)
    # A rank has seen only the sums of its share. All look at the whole, so that all decide the same.
    return _Sums(is_finite(packed, kept), sums.units) if alone or _lossless(setup, layout) else sums


def _between_nodes(setup: ExchangeSetup, gradients: Gradients, share: _Share, dense: bool) -> _Sums:
    """Replace the share by its sums over the nodes."""
    lossless = _lossless(setup, gradients.layout)
    agreement = _agree(setup, gradients.layout, share, dense, lossless)
    if not agreement.fit and not lossless:
        gather(share.parts, share.packed)
        _clear(share.packed, _gaps(gradients, share))
        _run(setup, (_dense(setup, share.packed), False), (_dense(setup, share.kept), False))
        return _Sums(False)
    in_place = _in_place(setup, gradients, share, agreement)
    if in_place is not None:
        _run(setup, (in_place, True), (_dense(setup, share.kept), False))
        return _Sums(True, divided=True)
    with setup.outer.meter.span("prepare", "codec"):
        compressed, units = _compressed(setup, gradients, share, agreement)
    _run(setup, (compressed, True), (_dense(setup, share.kept), False))
    with setup.outer.meter.span("finish", "codec"):
        if setup.feedback is not None:
            setup.feedback.put_away(*_draws(setup, gradients, share))
        return _Sums(not lossless or (is_finite(share.packed, share.kept)), units)


def _lossless(setup: ExchangeSetup, layout: Layout) -> bool:
    """Return whether every message can represent NaN and infinity, as fp32 and bf16 can."""
    return isinstance(setup.codec, Fp32 | Bf16) or not layout.compressed


def _agree(setup: ExchangeSetup, layout: Layout, share: _Share, dense: bool, lossless: bool) -> Agreement:
    """Agree with the other ranks, unless ``lossless``, on whether every gradient is fit and on the largest values."""
    codec = setup.codec
    if lossless:
        return Agreement(False)  # its messages can represent all values
    parts = [_fp32(part, share.packed) for part in share.parts]
    tensors = [piece.tensor.name for piece in layout.packed(0, layout.compressed)] if codec.agrees else []
    first = tensors.index(share.parts[0].piece.tensor.name) if tensors and parts else 0
    return agree(codec, setup.world, parts, Shared(first, len(tensors)), share.kept, dense)


def _compressed(
    setup: ExchangeSetup, gradients: Gradients, share: _Share, agreement: Agreement
) -> tuple[Stream, Sequence[float]]:
    """Return the gradients as a stream, and the value of 1 in each tensor's sum."""
    codec, packed, layout = setup.codec, share.packed, gradients.layout
    draws, first = _draws(setup, gradients, share)
    gaps = _gaps(gradients, share)
    if codec.agrees:
        scalings = _scalings(setup, gradients, share, agreement)
        _scale(share, scalings)
        return CodecStream(codec, packed, draws, first, exact=setup.dense), [scaling.unit for scaling in scalings]
    if setup.feedback is not None:
        owed = setup.feedback.compensate(layout, share.start, share.parts, packed)
        _clear(owed[0], gaps)  # a codec may send a padding of 0 as another value, which leaves a residual
        return CodecStream(codec, packed, draws, first, *owed, exact=setup.dense, gaps=gaps), ()
    gather(share.parts, packed)
    _clear(packed, gaps)
    if setup.guard is not None:
        setup.guard.watch(codec, share.parts, gradients.step)
    if setup.card is not None:
        return CardStream(codec, packed, setup.workers), ()
    return CodecStream(codec, packed, draws, first, exact=setup.dense, gaps=gaps), ()


def _gaps(gradients: Gradients, share: _Share) -> list[tuple[int, int]]:
    """Return the padding of the share."""
    return gradients.layout.gaps_in(share.start, share.start + share.packed.numel())


def _clear(packed: torch.Tensor, gaps: Sequence[tuple[int, int]]) -> None:
    """Set the padding to zero."""
    if gaps:
        torch._foreach_zero_([packed[start:stop] for start, stop in gaps])


def _in_place(setup: ExchangeSetup, gradients: Gradients, share: _Share, agreement: Agreement) -> Stream | None:
    """Return the gradients as a stream that leaves means in them; None if a packed copy is needed."""
    if not setup.compress_pull:
        return None
    draws = _draws(setup, gradients, share)
    if ternary_stream.fits(setup.codec, share.parts):
        scalings = _scalings(setup, gradients, share, agreement)
        return TernaryStream(setup.codec, share.parts, scalings, *draws, setup.workers)
    if integer_stream.fits(setup.codec, share.parts) and setup.feedback is None and setup.card is None:
        return IntegerStream(setup.codec, share.parts, *draws, setup.workers, _gaps(gradients, share))
    return None


def _draws(setup: ExchangeSetup, gradients: Gradients, share: _Share) -> tuple[Key, int]:
    """Return this rank's random stream, and the draw of the first element of the share."""
    return key(gradients.seed, gradients.step, setup.outer.rank), gradients.layout.first + share.start


def _scalings(setup: ExchangeSetup, gradients: Gradients, share: _Share, agreement: Agreement) -> Sequence[MessageScaling]:
    """Return the scaling of each part from the agreement, and record it in the sample."""
    scalings = [setup.codec.finish(*pair) for pair in zip(agreement.own, agreement.agreed, strict=True)]
    limits = [(scaling.bound, scaling.unit) for scaling in scalings]
    setup.sample.take(share.parts, agreement.moments, limits, *_draws(setup, gradients, share), gradients.step)
    return scalings


def _fp32(part: GradientSlice, room: torch.Tensor) -> torch.Tensor:
    """Return the gradient as fp32 in place; one of another type on the same device is converted into its slice of ``room``."""
    (_, start, stop), gradient = part
    if gradient.dtype == torch.float32 or gradient.device != room.device:
        return gradient.float()
    return room[start:stop].copy_(gradient)


def _scale(share: _Share, scalings: Sequence[MessageScaling]) -> None:
    """Gather the gradients, each clipped and multiplied by its scaling."""
    for ((_, start, stop), gradient), (bound, factor, _) in zip(share.parts, scalings, strict=True):
        part = share.packed[start:stop]
        if gradient.dtype == part.dtype and gradient.device == part.device:
            torch.clamp(gradient, -bound, bound, out=part)
        else:
            part.copy_(gradient).clamp_(-bound, bound)
        part.mul_(factor)


def _dense(setup: ExchangeSetup, values: torch.Tensor) -> Stream:
    return CodecStream(setup.dense, values, Key(0, 0), 0, exact=setup.dense)


def _run(setup: ExchangeSetup, *streams: tuple[Stream, bool]) -> None:
    """Exchange the streams, each with a flag that is True if it is encoded. Cards get only data that they may compress."""
    carried = [(stream, setup.exchange.carrier(encoded)) for stream, encoded in streams]
    size = setup.exchange.chunk_elements
    in_card = [(stream, name) for stream, name in carried if isinstance(stream, CardStream)]
    if setup.card is not None and in_card:
        exchange_streams(in_card, setup.card, size, setup.compress_pull)
        carried = [pair for pair in carried if pair not in in_card]
    exchange_streams(carried, setup.outer, size, setup.compress_pull)
