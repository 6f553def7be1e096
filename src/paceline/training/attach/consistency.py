"""Checks against silent errors: ranks with different settings, or replicas that diverged."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paceline.codecs import backends, container
from paceline.errors import ReplicasDiverged, UserError
from paceline.training.attach.liveness import wait_for_all
from paceline.training.device_stream import has_streams
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.wires.collectives import ALL_GATHER, collective
from paceline.workload.factory import user_module

CODE = "code"
"""Name of this package's version in ``agree``."""


def agree(
    group: dist.ProcessGroup, settings: dict[str, Any], tensors: Sequence[TensorSpec], timeout_s: float, what: str = "attach"
) -> None:
    """Compare settings and tensors over the ranks before any exchange.

    Args:
        timeout_s: time to wait for the other ranks; ``what``: name of the call that they must make too.

    Raises:
        UserError: on every rank, with the differences and their ranks; a rank does not call this in time.
    """
    wait_for_all(group, what, timeout_s)
    shapes = hashlib.sha256(repr([(t.name, t.shape) for t in tensors]).encode()).hexdigest()[:12]
    layout = {"wire format": container.VERSION, "tensors": f"{len(tensors)} of layout {shapes}"}
    same_everywhere(group, {**settings, **layout, CODE: code_version()}, f"call {what}() with the same arguments on every rank")


def same_everywhere(group: dist.ProcessGroup | None, mine: dict[str, Any], fix: str) -> None:
    """Compare values by name over the ranks. Raises UserError on every rank, with the differences and their ranks."""
    everyone: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    names = sorted({name for other in everyone for name in other})
    differing = [name for name in names if len({repr(other.get(name)) for other in everyone}) > 1]
    if differing:
        told = (f"{name} ({_by_rank([other.get(name, 'not given') for other in everyone])})" for name in differing)
        installs = "install the same Paceline on every rank" if CODE in differing else fix
        raise UserError(f"the ranks disagree on {', '.join(told)}", installs)


def _by_rank(values: Sequence[Any]) -> str:
    """Format ranks and their values; for mappings only the differing fields."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(_differing_fields(values)):
        ranks.setdefault(str(value), []).append(rank)
    return "; ".join(f"rank{'s' * (len(having) > 1)} {_runs(having)}: {value}" for value, having in ranks.items())


def _runs(ranks: Sequence[int]) -> str:
    """Format ascending ranks, with three or more consecutive ones as ``2-7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _differing_fields(values: Sequence[Any]) -> list[Any]:
    """Format the differing fields of mappings; other values are unchanged."""
    if not all(isinstance(value, Mapping) for value in values):
        return list(values)
    flat = [dict(_flat(value)) for value in values]
    names = dict.fromkeys(name for value in flat for name in value)
    differing = [name for name in names if len({repr(value.get(name)) for value in flat}) > 1]
    return [", ".join(f"{name} {value.get(name, 'not given')}" for name in differing) for value in flat]


def _flat(value: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested mappings to one, keyed by path."""
    for name, field in value.items():
        if isinstance(field, Mapping):
            yield from _flat(field, f"{inside}{name}.")
        else:
            yield inside + name, field


@functools.cache
def code_version() -> str:
    """Return the version of this package and a digest of its Python source. Ranks with equal code have equal digests."""
    digest, root = hashlib.sha256(), Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return f"paceline {metadata.version('paceline')} {digest.hexdigest()[:12]}"


def module_version(name: str) -> str:
    """Return a digest of a user's ``module:function``; empty for other names. Raises UserError if it cannot be imported."""
    file = getattr(user_module(name.partition(":")[0]), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else ""


def same_weights(
    group: dist.ProcessGroup, weights: Iterable[torch.Tensor], device: torch.device, left_out: bool = False
) -> None:
    """Compare a checksum of the weights over the workers. Raises ReplicasDiverged on every rank.

    Args:
        left_out: True if this rank has run out of data, so that its weights are outdated and not compared.
    """
    (sums,) = of_all_ranks(group, [-1 if left_out else comparable(weights)], device)
    refuse_unequal("weights", sums)


def same_in_mesh(
    what: str, own: Checksum, same: Sequence[dist.ProcessGroup], others: Iterable[dist.ProcessGroup], device: torch.device
) -> None:
    """Compare a checksum as ``odd_in_mesh`` does. Raises ReplicasDiverged on every rank of the mesh."""
    odd = odd_in_mesh(own, same, others, device)
    if odd:
        told = "; ".join(f"{what} of rank {rank} differ from those of rank {first}" for rank, first in sorted(odd.items()))
        raise ReplicasDiverged(told)


def odd_in_mesh(
    own: Checksum, same: Sequence[dist.ProcessGroup], others: Iterable[dist.ProcessGroup], device: torch.device
) -> dict[int, int]:
    """Return the ranks whose checksum differs from the first rank that should have an equal one, and that first rank. The
    result is equal on all ranks.

    Args:
        own: the checksum of this rank.
        same: groups that together connect this rank to all ranks that should have the same checksum.
        others: further groups that connect it to all ranks of the mesh.
    """
    known: list[Any] = [dist.get_rank(), own]
    for group in same:
        known = _told_by_all(group, known, device)
    length = len(known)
    for group in others:
        if group not in same:
            known = _told_by_all(group, known, device)
    odd: dict[int, int] = {}
    for start in range(0, len(known), length):
        holders, held = (known[start + k : start + length : 2] for k in (0, 1))
        odd |= {rank: holders[0] for rank, value in zip(holders, held, strict=True) if value != held[0]}
    return odd


def _told_by_all(group: dist.ProcessGroup, numbers: Sequence[Checksum], device: torch.device) -> list[int]:
    """Return the numbers of all ranks, in order of ranks."""
    return [number for of_rank in zip(*of_all_ranks(group, numbers, device), strict=True) for number in of_rank]


Checksum = int | torch.Tensor
"""Checksum of tensors: on a CPU a number; elsewhere still on the device, so that the host waits for nothing."""


def comparable(tensors: Iterable[torch.Tensor]) -> Checksum:
    """Return a checksum of 63 bits to compare with those of other ranks, computed where the tensors are."""
    tensors = [tensor.detach() for tensor in tensors]
    device = tensors[0].device if tensors else torch.device("cpu")
    if not has_streams(device) or any(tensor.device != device for tensor in tensors):
        return checksum(tensors)
    total = torch.zeros((), dtype=torch.int64, device=device)
    for tensor in tensors:
        total = total * 1_000_003 + device_checksum(tensor)
    return total & _MASK


def device_checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bytes, each times an odd number that depends on its place, modulo 2^64, on its device.

    A byte that differs, or two that are exchanged, change the sum: an odd number is no divisor of 0, and those of the places
    differ.
    """
    body = tensor.contiguous().reshape(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, body.numel(), _PIECE):
        piece = body[start : start + _PIECE].to(torch.int64).add_(1)
        places = torch.arange(start, start + piece.numel(), dtype=torch.int64, device=tensor.device)
        total += piece.mul_(places.mul_(_SPREAD).bitwise_or_(1)).sum()
    return total


_MASK = 0x7FFFFFFFFFFFFFFF
_PIECE = 1 << 22  # bytes summed at a time: 64 MiB of numbers
_SPREAD = 0x1E3779B97F4A7C16  # even, so that different places have different odd numbers


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number of 63 bits from the bytes of tensors in this order."""
    total = 0
    for index, tensor in enumerate(tensors):
        body = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        first, second = backends.checksum(index.to_bytes(24, "little"), body)
        total = (total * 1_000_003 + (first << 31) + second) & _MASK
    return total


def of_all_ranks(group: dist.ProcessGroup, checksums: Sequence[Checksum], device: torch.device) -> list[list[int]]:
    """Return each checksum on all ranks, in order of ranks."""
    mine = torch.stack([torch.as_tensor(one, dtype=torch.int64, device=device) for one in checksums])
    sums = torch.empty(dist.get_world_size(group) * len(checksums), dtype=torch.int64, device=device)
    with collective():
        getattr(dist, ALL_GATHER)(sums, mine, group=group)
    table: list[list[int]] = sums.view(-1, len(checksums)).T.tolist()
    return table


def odd_ranks(sums: Sequence[int]) -> tuple[list[int], int]:
    """Return the ranks whose checksum differs from the first rank with one (from 0 up), and that rank."""
    of_rank = {rank: value for rank, value in enumerate(sums) if value >= 0}
    first = min(of_rank, default=0)
    return [rank for rank, value in of_rank.items() if value != of_rank[first]], first


def refuse_unequal(what: str, sums: Sequence[int]) -> None:
    """Raise ReplicasDiverged with the ranks whose checksum differs."""
    odd, first = odd_ranks(sums)
    if odd:
        raise ReplicasDiverged(f"{what} of rank {', '.join(map(str, odd))} differ from those of rank {first}")
