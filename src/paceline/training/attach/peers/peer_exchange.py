"""Exchange of pseudo-gradients among the members of one attempt, which may fail without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.strategy import GradientExchange, LocalSteps
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.consistency import same_weights
from paceline.training.attach.local.local_fragments import Fragment
from paceline.training.attach.peers.peer_groups import PeerGroup
from paceline.training.attach.peers.rounds import Attempt
from paceline.training.exchanges import begin_allreduce
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup, setup_at
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter

Residuals = Mapping[str, Mapping[str, torch.Tensor]]
NO_RESIDUALS: Residuals = {"residual": {}, "velocity": {}}
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class PeerChange:
    """Contribution of this peer to an outer step.

    Attributes:
        difference: its pseudo-gradient, flat, on the CPU; zeros if it contributes nothing.
        buffers: its buffers, flat. ``residuals``: those of its earlier pseudo-gradients.
        contributes: True if it has a pseudo-gradient.
    """

    difference: torch.Tensor
    buffers: torch.Tensor
    residuals: Residuals
    contributes: bool


@dataclass(frozen=True, kw_only=True)
class Mean:
    """Result of an exchange.

    Attributes:
        difference, buffers: means over the contributors. ``residuals``: what this peer still has to send.
        group: the process group, for the next exchange of the same members.
        meter: counts of the exchange.
    """

    difference: torch.Tensor
    buffers: torch.Tensor
    residuals: Residuals
    group: PeerGroup | None
    meter: Meter

    @property
    def finite(self) -> bool:
        """True if the means are; equal on all members."""
        return is_finite(self.difference) and is_finite(self.buffers)


@dataclass(frozen=True)
class PeerExchange:
    """Exchange of one peer with others.

    Attributes:
        gradient_exchange, local, options: how and what is exchanged.
        fragment: the network.
    """

    gradient_exchange: GradientExchange
    local: LocalSteps
    options: AttachOptions
    fragment: Fragment

    def __call__(self, attempt: Attempt, own: int, change: PeerChange, group: PeerGroup | None, store: Any) -> Mean:
        """Exchange with the members of an attempt. It changes nothing but its own result.

        Args:
            own: number of this peer. ``group``: the last process group. ``store``: connection for a new one.

        Raises:
            LostRank: a member is lost. Others as of ``exchange_group``.
        """
        rank, size = attempt.members.index(own), len(attempt.members)
        meter = Meter(rank)
        if size == 1 or not attempt.contributors:
            return Mean(
                difference=change.difference, buffers=change.buffers, residuals=change.residuals, group=group, meter=meter
            )
        if group is None or group.key != attempt.group:
            group = PeerGroup(store, attempt.group, attempt.members, own, self.options.timeout_s)
        wire = Wire(group.group, CPU, meter, self.options.timeout_s)
        every = self.options.check_every
        if every and attempt.outer_step % every == 0:
            same_weights(wire.group, [self.fragment.anchor], CPU)
        share = size / attempt.contributors  # those without a change count in no mean
        buffers = change.buffers * float(change.contributes)
        if buffers.numel():
            buffers = wire.note(buffers)() / attempt.contributors
        mean, residuals = change.difference.clone(), change.residuals
        if is_finite(buffers) and self.fragment.layout.total:  # a small network has empty shards
            residuals = self._exchange(wire, attempt, mean, residuals)
            mean *= share
        return Mean(difference=mean, buffers=buffers, residuals=residuals, group=group, meter=meter)

    def _exchange(self, wire: Wire, attempt: Attempt, mean: torch.Tensor, residuals: Residuals) -> Residuals:
        """Replace a pseudo-gradient by the members' mean, and return the new residuals."""
        setup = make_setup(self.gradient_exchange, wire, Sample())
        if setup is None:
            begin_allreduce(mean, self.gradient_exchange.description.format, wire)()
            return residuals
        if setup.feedback is not None:
            setup.feedback.decay = self.local.residual_decay
            setup.feedback.load(residuals)
        setup, layout = setup_at(setup, self.gradient_exchange, attempt.outer_step), self.fragment.layout
        exchange_group(
            setup,
            Gradients(
                layout=layout,
                parts={name: part for name, part in self.fragment.named(mean).items() if part.numel()},
                workspace=torch.empty(room(setup, layout), dtype=torch.float32),
                seed=self.options.seed,
                step=attempt.outer_step,
            ),
        )
        return setup.feedback.state(copied=False) if setup.feedback is not None else residuals


def cpu_copy(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies on the CPU."""
    return [part.detach().cpu().clone() for part in parts]
