"""Tensors that the passes of one micro batch save: when they are allocated and freed.

A layer's tensors live from its forward pass to the end of its backward pass. A recomputed part lives from its recomputation,
just before the backward pass of its last layer. The bytes are those of the prediction (``passes/recompute.py``,
``step/memory.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, zip_longest

from paceline.memory_timeline import Allocation
from paceline.prediction.passes.activation_offload import blocks_on_host
from paceline.prediction.passes.recompute import block_names, recomputed
from paceline.prediction.step.memory import loss_at_once, loss_bytes
from paceline.prediction.step.timeline import LayerPass
from paceline.strategy.frameworks.loss import Loss
from paceline.strategy.offload import HostActivations
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import block
from paceline.workload.layers import Numbers
from paceline.workload.table import Workload

ACTIVATIONS = "activations"
FINE = 20_000
"""Passes through layers in a step up to which each layer is drawn on its own, and not each block."""


@dataclass(frozen=True)
class SavedTensors:
    """Bytes that the passes of one micro batch save on one device.

    Attributes:
        names: names of the layers.
        kept: bytes by layer, from its forward to its backward pass.
        parts: layers of each recomputed part, with their bytes during its recomputation.
        groups: layers that are drawn together, in forward order.
        loss: index of the loss. ``logits``: index of the lowest layer that its gradients reach.
        of_loss: bytes of the gradients of the loss.
        hosted: layers of each block whose bytes leave for the host's memory, in forward order.
        stays: whether the last of them stays, because its backward pass follows directly.
    """

    names: tuple[str, ...]
    kept: tuple[float, ...]
    parts: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]
    groups: tuple[tuple[int, ...], ...]
    loss: int = -1
    logits: int = -1
    of_loss: float = 0.0
    hosted: tuple[tuple[int, ...], ...] = ()
    stays: bool = False

    @cached_property
    def _leaving(self) -> frozenset[int]:
        return frozenset(i for members in self.hosted for i in members)

    @property
    def total(self) -> float:
        """Bytes that the device keeps from the forward to the backward pass."""
        return sum(size for i, size in enumerate(self.kept) if i not in self._leaving)

    def part(self, layers: range, count: int) -> SavedTensors:
        """Return those of some layers. ``count``: equal parts that together keep ``total``."""
        staying = [i for i in layers if i not in self._leaving]
        own, mean = sum(self.kept[i] for i in staying), self.total / count
        factors = dict.fromkeys(staying, mean / own if own else 0.0) | {i: 1.0 for i in layers if i in self._leaving}
        kept = [size * factors.get(i, 0.0) for i, size in enumerate(self.kept)]
        if staying and not own:
            kept[staying[0]] = mean
        return replace(self, kept=tuple(kept))


def saved_tensors(
    workload: Workload,
    numbers: Numbers,
    choice: Recompute,
    precision: str,
    micro_batch: int,
    activations: float,
    passes: int,
    loss: Loss,
    on_host: HostActivations | None = None,
) -> SavedTensors:
    """Return the saved tensors of a micro batch of ``micro_batch`` samples.

    Args:
        numbers, choice, precision, loss, on_host: as for ``sample_bytes``.
        activations: predicted bytes of a micro batch's activations, with the largest part during its recomputation or the loss.
        passes: micro batches of a step.
    """
    layers = workload.layers
    plan = recomputed(workload, choice, numbers, precision)
    coarse = 2 * passes * len(layers) > FINE
    sizes = [layer.kept_bytes(numbers) for layer in layers]
    parts = []
    for members, extra in plan.parts:
        shown = members[:1] if coarse and choice.whole_blocks else members
        whole = sum(sizes[i] for i in shown)
        shares = [sizes[i] / whole if whole else 1 / len(shown) for i in shown]
        parts.append((members, tuple(micro_batch * extra * share for share in shares)))
    own = SavedTensors(
        names=tuple(layer.name for layer in layers),
        kept=tuple(micro_batch * size for size in plan.kept),
        parts=tuple(parts),
        groups=_groups([layer.name for layer in layers], coarse=coarse),
    )
    if on_host is not None:
        blocks = blocks_on_host(workload, choice, on_host, numbers, precision)
        chosen, ends = block_names(workload).values(), {int(end) for end in blocks.ends}
        own = replace(own, hosted=tuple(tuple(members) for members in chosen if members[-1] in ends), stays=blocks.whole)
    stored = loss_bytes(workload, numbers)
    if not stored:
        return own
    last = max((i for i, layer in enumerate(layers) if layer.kind == "loss"), key=lambda i: layers[i].kept_bytes(numbers))
    at_once = micro_batch * loss_at_once(workload, numbers, loss)
    kept = [size - micro_batch * stored + at_once if i == last else size for i, size in enumerate(own.kept)]
    own = replace(own, kept=tuple(kept))
    if not loss.fp32_copies or (numbers == "fused" and loss.chunks == 1):
        return own
    logits = [i for i, layer in enumerate(layers) if layer.is_logits]
    size = min(max(0.0, activations - own.total), loss.fp32_copies * at_once)
    return replace(own, loss=last, logits=min([*logits, last]), of_loss=size)


def _groups(names: Sequence[str], *, coarse: bool) -> tuple[tuple[int, ...], ...]:
    """Return the layers that are drawn together: each alone, or those of a block."""
    if not coarse:
        return tuple((i,) for i in range(len(names)))
    of = groupby(range(len(names)), key=lambda i: block(f"{names[i]}.") or str(i))
    return tuple(tuple(members) for _, members in of)


def allocations(saved: SavedTensors, passes: Iterable[LayerPass]) -> Iterator[Allocation]:
    """Yield the tensors of one micro batch. ``passes``: its passes through all or some of the layers."""
    forward: dict[int, LayerPass] = {}
    backward: dict[int, LayerPass] = {}
    again: dict[int, LayerPass] = {}
    of = {"forward": forward, "backward": backward, "recompute": again}
    for p in passes:
        of[p.kind][p.layer] = p
    here, there = _on_host(saved, forward, backward)
    for members in saved.groups:
        size, first = sum(saved.kept[i] for i in members), members[0]
        if not size or first not in forward:
            continue
        name = saved.names[first] if len(members) == 1 else block(f"{saved.names[first]}.").rstrip(".")
        start, end = forward[first].start_s, backward[first].end_s
        if first in here:
            yield Allocation(ACTIVATIONS, name, size, start, max(start, here[first]))
            start = there[first]
        yield Allocation(ACTIVATIONS, name, size, start, end)
    for layers, sizes in saved.parts:
        if layers[0] in backward:
            yield from _recomputed(saved, layers, sizes, backward, again)
    if saved.of_loss and saved.loss in forward:
        name = f"gradients of {saved.names[saved.loss]}"
        ahead, back = forward[saved.loss], backward[saved.loss]
        yield Allocation(ACTIVATIONS, name.replace("gradients", "copies"), saved.of_loss, ahead.start_s, ahead.end_s)
        yield Allocation(ACTIVATIONS, name, saved.of_loss, back.start_s, backward[saved.logits].end_s)


def _on_host(
    saved: SavedTensors, forward: Mapping[int, LayerPass], backward: Mapping[int, LayerPass]
) -> tuple[dict[int, float], dict[int, float]]:
    """Return when the bytes of each layer have left for the host, and when they begin to return; empty for those that stay.

    A block's bytes leave while the next block runs forward, and return while that runs backward.
    """
    left, returns = dict[int, float](), dict[int, float]()
    own = [members for members in saved.hosted if members[0] in forward]
    if not own:
        return left, returns
    stay = saved.stays and own[-1] is saved.hosted[-1]
    for members, following in zip_longest(own, own[1:]):
        if following is None and stay:
            break
        last = following[-1] if following else max(forward)
        ends, begins = forward[last].end_s, backward[last].start_s
        left |= dict.fromkeys(members, ends)
        returns |= dict.fromkeys(members, begins if following else backward[members[-1]].start_s)
    return left, returns


def _recomputed(
    saved: SavedTensors,
    layers: Sequence[int],
    sizes: Sequence[float],
    backward: Mapping[int, LayerPass],
    again: Mapping[int, LayerPass],
) -> Iterator[Allocation]:
    """Yield the tensors of a recomputed part, layer after layer, until each layer's backward pass."""
    last = layers[-1]
    run = again.get(last)
    clock, seconds = (run.start_s, run.seconds) if run else (backward[last].start_s, 0.0)
    whole = sum(sizes)
    for layer, size in zip(layers, sizes, strict=False):
        if size:
            yield Allocation(ACTIVATIONS, f"{saved.names[layer]} again", size, clock, backward[layer].end_s)
            clock += seconds * size / whole
