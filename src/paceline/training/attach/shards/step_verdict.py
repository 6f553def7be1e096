"""Verdict whether a step of a sharded model counts: one decision of all ranks for all units.

FSDP2 reduces units one after another. A unit may have been sent compressed before a later one shows a NaN, and the ranks that
do not hold the NaN's shard may not see it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from paceline.errors import UserError
from paceline.training.attach.shards.fsdp_units import Unit, widest_mesh
from paceline.training.exchanges.wires.collectives import Wire, WireError
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire


class Verdict(NamedTuple):
    """Verdict of all ranks on a step.

    Attributes:
        nonfinite: True if a gradient of any rank was NaN, infinite or too large for the codec.
        mixed: True if, in addition, a unit of any rank had been sent compressed. The step must then be skipped.
    """

    nonfinite: bool
    mixed: bool


class StepVerdict:
    """Collector of this rank's observations on the units of a step, which all ranks combine at the end.

    Args:
        wires: successive reductions over them reach all ranks.
        lossy: True if the compression cannot represent a NaN. Else no step is mixed, and others' observations are only counted.

    Attributes:
        wires: wires over which the verdict is agreed.
        nonfinite: whether this rank knows of a bad gradient in this step.
    """

    def __init__(self, wires: Sequence[Wire], lossy: bool) -> None:
        self.wires, self._lossy = tuple(wires), lossy
        self._counted: Callable[[], Verdict] | None = None  # verdict of the last step, if it is only counted
        self._begin()

    def _begin(self) -> None:
        self.nonfinite = self._encoded = False
        self._agreed: Wire | None = None

    def seen(self, nonfinite: bool, encodes: bool, agreed: Wire | None) -> None:
        """Record the reduction of a unit.

        Args:
            encodes: True if it is sent compressed when all gradients are fit.
            agreed: wire whose ranks have exchanged their knowledge of this unit and of earlier ones; None without one.
        """
        self.nonfinite |= nonfinite
        self._encoded |= encodes and not self.nonfinite
        self._agreed = agreed

    def conclude(self) -> Callable[[], Verdict]:
        """Return a function that returns the verdict of all ranks. All of them call it at the end of a step.

        Two numbers are sent, which do not count as bytes of the step; none if the last unit's exchange has informed all ranks.
        If they are only counted, this call does not wait for them. The function does, and any rank may call it at any time or
        never. They are sent during the next step, except on a mesh of several dimensions, whose sums follow one another.
        """
        if self._counted is not None:
            self._counted()  # it has arrived, and this thread may wait for the device
        own, lossy = Verdict(self.nonfinite, False), self._lossy
        numbers = torch.tensor([float(self.nonfinite), float(self._encoded)], dtype=torch.float32)
        arrived: Callable[[], torch.Tensor] = lambda: numbers  # noqa: E731
        for wire in self.wires:
            if wire is not self._agreed:
                arrived = wire.note(arrived().to(wire.device))
        self._begin()

        @functools.cache
        def verdict() -> Verdict:
            try:
                nonfinite, encoded = arrived().tolist()
            except WireError:  # the next exchange names the lost rank
                if lossy:
                    raise
                return own
            return Verdict(nonfinite > 0, nonfinite > 0 and encoded > 0)

        if lossy:
            verdict()  # here, so that the thread of the backward pass has no wait for the device
        self._counted = None if lossy else verdict
        return verdict


def verdict_wires(units: Sequence[Unit], known: Iterable[Wire], meter: Meter, timeout_s: float) -> list[Wire]:
    """Return a wire for each dimension of the mesh of all units, except that of HSDP's replicas, which have equal sums. Tensor
    parallel dimensions are included. Every rank calls it.

    Args:
        known: wires to use again.

    Raises:
        UserError: no mesh of a unit has all ranks of the others.
    """
    meshes = {parameter.device_mesh for unit in units for parameter in unit.parameters}  # type: ignore[attr-defined]
    widest = widest_mesh(units)
    ranks = set(widest.mesh.flatten().tolist())
    if any(not ranks.issuperset(mesh.mesh.flatten().tolist()) for mesh in meshes):
        raise UserError(
            "no mesh of this model's units has all ranks, so no step can be skipped on all",
            "call fully_shard on the model with a mesh of all ranks",
        )
    replicas = {tuple(dist.get_process_group_ranks(u.replicate_group)) for u in units if u.replicate_group is not None}
    by_ranks = {tuple(wire.job_rank(rank) for rank in range(wire.world_size)): wire for wire in known}
    wires = []
    for dimension in range(widest.ndim):
        group = widest.get_group(dimension)
        members = tuple(dist.get_process_group_ranks(group))
        if len(members) == 1 or members in replicas:
            continue
        wires.append(by_ranks.get(members) or own_wire(group, members, next(iter(by_ranks.values())).device, meter, timeout_s))
    return wires
