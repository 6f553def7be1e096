"""Error feedback, which adds the error of a lossy encoding to the next gradient (Stich et al. 2018; Karimireddy et al. 2019).

With momentum correction the local momentum accumulates, and is reset at sent elements (Lin et al. 2018, Deep
Gradient Compression, section 3 and Algorithm 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from paceline.codecs import Key
from paceline.training.device_stream import settle_copies
from paceline.training.exchanges.gradients.residual_keeping import AS_THEY_ARE, Keeping, WorkingCopies
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout

FeedbackState = dict[str, torch.Tensor]


class Memory:
    """Stored values per compressed element, by tensor, so that they survive DDP's rebuilding of its buckets.

    A step may write to a draft instead, which then replaces the values or is dropped as a whole.
    """

    def __init__(self, keeping: Keeping = AS_THEY_ARE) -> None:
        self._keeping = keeping
        self._flat: dict[tuple[str, ...], torch.Tensor] = {}
        self._by_name: FeedbackState = {}
        self._drafts: dict[tuple[str, ...], torch.Tensor] = {}
        self._written: dict[tuple[str, ...], Layout] = {}  # drafts of this step

    def flat(self, layout: Layout, device: torch.device) -> torch.Tensor:
        """Return the values of a layout's compressed tensors as one buffer, zeros at first. ``device``: device of the codec."""
        if layout.names not in self._flat:
            buffer = self._keeping.zeros(layout.compressed, device)
            for tensor, start, stop in layout.packed(0, layout.compressed):
                if tensor.name in self._by_name:
                    buffer[start:stop] = self._by_name[tensor.name]
                self._by_name[tensor.name] = buffer[start:stop]
            mine = set(self._by_name)
            self._flat = {names: old for names, old in self._flat.items() if not mine & set(names) & set(layout.names)}
            for drafts in (self._drafts, self._written):
                for names in drafts.keys() - self._flat.keys():
                    del drafts[names]  # type: ignore[attr-defined]
            self._flat[layout.names] = buffer
        return self._flat[layout.names]

    def draft(self, layout: Layout, device: torch.device) -> torch.Tensor:
        """Return a second buffer for the values of this step. Elements that a step does not write are those of ``flat``."""
        values = self.flat(layout, device)
        if layout.names not in self._drafts:
            self._drafts[layout.names] = self._keeping.zeros(layout.compressed, device).copy_(values)
        self._written[layout.names] = layout
        return self._drafts[layout.names]

    def latest(self, layout: Layout, device: torch.device) -> torch.Tensor:
        """Return the values that this step has written: the draft if there is one."""
        return self._drafts[layout.names] if layout.names in self._written else self.flat(layout, device)

    def end_step(self, keep: bool) -> None:
        """Replace the values by this step's drafts, without a copy, or drop the drafts."""
        for names, layout in self._written.items():
            if keep:
                self._flat[names], self._drafts[names] = self._drafts[names], self._flat[names]
                for tensor, start, stop in layout.packed(0, layout.compressed):
                    self._by_name[tensor.name] = self._flat[names][start:stop]
        self._written = {}

    def holds(self, layout: Layout) -> bool:
        """Return whether any values are stored."""
        return any(name in self._by_name for name in layout.names)

    def state(self, copied: bool = True) -> FeedbackState:
        """Return the values by tensor: a copy, or the tensors that the next exchange changes."""
        return {name: values.cpu().clone() if copied else values for name, values in self._by_name.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace all values by ``state``, of any type."""
        self._flat.clear()
        self._drafts.clear()
        self._written.clear()
        self._by_name = {name: values.to(self._keeping.dtype).reshape(-1).clone() for name, values in state.items()}

    def scale(self, factor: float) -> None:
        """Multiply all values by the factor that a gradient scaler applied to gradients."""
        for values in (*self._by_name.values(), *self._drafts.values()):
            values.mul_(factor)


class Feedback:
    """Residuals, and the momentum if it is corrected.

    Args:
        momentum: 0 for plain error feedback; otherwise the factor that the optimizer then does without.
        keeping: place and type of both between exchanges.

    Attributes:
        holds_back: later groups of this step may still show a NaN: write drafts, which ``end_step`` accepts or drops.
        decay: factor of the residuals before gradients are added to them.
        clipped: a mean of this step was too large for the gradient's type. The rest of it stays in the residuals.
    """

    def __init__(self, momentum: float = 0.0, keeping: Keeping = AS_THEY_ARE) -> None:
        self.momentum, self.keeping, self.decay = momentum, keeping, 1.0
        self.holds_back = self.clipped = False
        self.residual, self.velocity = Memory(keeping), Memory(keeping)
        self._copies = WorkingCopies()
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []  # working copies, and where they are kept

    def compensate(
        self, layout: Layout, start: int, gradients: Iterable[GradientSlice], like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the sum of gradients and residuals for the elements of ``like``, from ``start`` of the layout, on its device.

        Returns:
            The sum, from which the encoder subtracts the values that it sent, and the local momentum if it is corrected.
            ``put_away`` stores both.
        """
        here = slice(start, start + like.numel())
        self._taken.clear()
        before, residual = self._buffers("residual", layout, here, like.device)
        momentum, velocity = self._buffers("velocity", layout, here, like.device) if self.momentum else (None, None)
        for (_, begin, end), gradient in gradients:
            gradient = gradient.to(like.device)
            if momentum is not None and velocity is not None:
                gradient = torch.mul(momentum[begin:end], self.momentum, out=velocity[begin:end]).add_(gradient)
            if self.decay == 1:
                torch.add(before[begin:end], gradient, out=residual[begin:end])
            else:
                torch.add(gradient, before[begin:end], alpha=self.decay, out=residual[begin:end])
        return residual, velocity

    def _buffers(self, kind: str, layout: Layout, here: slice, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the stored residuals and those that this step writes, which are two buffers if it holds back."""
        memory: Memory = getattr(self, kind)
        kept = memory.latest(layout, device)  # a unit of FSDP2 may be exchanged twice in a step
        written = memory.draft(layout, device) if self.holds_back else kept
        if self.keeping.in_place(device):
            return kept[here], written[here]
        copy = self._copies.of(kind, kept[here], device)
        self._taken.append((copy, written[here]))
        return copy, copy

    def put_away(self, key: Key, first: int) -> None:
        """Store the residuals after the encodings of the last ``compensate``. ``key``, ``first``: draws of the rounding."""
        for number, (copy, kept) in enumerate(self._taken):
            self.keeping.put(copy, kept, Key(key.low, key.high ^ number), first)
        self._taken.clear()

    def end_step(self, keep: bool) -> None:
        """Keep the values written in the step, or restore all earlier ones."""
        self.residual.end_step(keep)
        self.velocity.end_step(keep)

    def keep(self, layout: Layout, start: int, stop: int, factor: float, device: torch.device) -> None:
        """Multiply elements ``start`` to ``stop`` by ``factor`` on the codec's device. Elements of other ranks are dropped."""
        for memory in (self.residual, self.velocity):
            if memory.holds(layout):
                values = memory.flat(layout, device)
                values[start:stop] *= factor
                values[:start], values[stop:] = 0, 0

    def take_back(self, layout: Layout, start: int, stop: int, sums: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Add delivered sums of some tensors, by name, back to the residuals, because they were discarded.

        Args:
            start, stop: elements of the layout that this rank sends.
            sums: this rank's equal share of the sum over the workers; ``device``: the codec's.
        """
        residual = self.residual.latest(layout, device)
        settle_copies(device)  # where the host keeps residuals, it adds to them
        for tensor, first, end in layout.pieces:
            begin, end = max(first, start), min(end, stop, layout.compressed)
            if tensor.name in sums and begin < end:
                residual[begin:end] += sums[tensor.name][begin - first : end - first].to(residual.device)

    def state(self, copied: bool = True) -> dict[str, FeedbackState]:
        """Return all values by tensor: a copy, or the tensors that the next exchange changes."""
        return {"residual": self.residual.state(copied), "velocity": self.velocity.state(copied)}

    def load(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Continue from ``state``."""
        self.residual.load(state["residual"])
        self.velocity.load(state["velocity"])


def shared_out(states: Sequence[Mapping[str, FeedbackState]]) -> dict[str, FeedbackState]:
    """Return the state of each worker, the mean, for any number of workers.

    Exchanges send the mean of the workers, so the mean of the residuals must be preserved. With the sum preserved, half the
    workers would add it twice.
    """
    shares: dict[str, FeedbackState] = {}
    for kind in ("residual", "velocity"):
        names = {name for state in states for name in state[kind]}
        totals = {name: sum(s[kind][name].double() for s in states if name in s[kind]) for name in sorted(names)}
        shares[kind] = {name: (torch.as_tensor(total) / len(states)).float() for name, total in totals.items()}
    return shares
