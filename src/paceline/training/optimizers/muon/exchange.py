"""Exchange of matrices: whole ones to their owners, and the orthogonalized ones back to all holders.

Sharded tensors take an all-to-all each way, and copies an all-gather, whose buffers hold many matrices. So the number of calls
depends on the bytes alone. A round's calls run while the next one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.training.exchanges.wires.collectives import ALL_GATHER
from paceline.training.optimizers.muon.matrices import Piece
from paceline.training.optimizers.muon.newton_schulz import NewtonSchulz, chunk
from paceline.training.optimizers.muon.ownership import owners, rounds
from paceline.training.optimizers.muon.placement import Box, Holders, box, elements, inside, meet

BUCKET = 1 << 26
"""Elements of a round over all ranks: 128 MB of bf16."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One matrix to orthogonalize.

    Attributes:
        tensor: index of its tensor.
        piece: the matrix.
        whole: its place in the tensor.
        copy, shard: place of its owner.
        parts: the part of it that each shard holds; None for no part.
    """

    tensor: int
    piece: Piece
    whole: Box
    copy: int
    shard: int
    parts: tuple[Box | None, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """Shape of the matrix as a part of its tensor."""
        return tuple(b - a for a, b in self.whole)


Source = Callable[[Sequence[Assignment], Sequence[Box]], list[Tensor]]
"""Returns this rank's updates of the given parts, of the given jobs."""
Apply = Callable[[Assignment, Box, Tensor], None]
"""Takes the orthogonalized part of a job that this rank holds."""


class MatrixExchange:
    """Matrices of tensors with the same holders, and their way to the owners and back.

    Args:
        holders: ranks that hold the tensors.
        tensors: the parameters, with the matrices of each.
        work: the orthogonalization.
        loads: FLOPs of each rank so far; those of these matrices are added.
        bucket: elements of a round.
    """

    def __init__(
        self,
        holders: Holders,
        tensors: Sequence[tuple[Tensor, Sequence[Piece]]],
        work: NewtonSchulz,
        loads: dict[int, int],
        bucket: int = BUCKET,
    ) -> None:
        self.holders, self.work = holders, work
        listed = [(index, piece) for index, (_, found) in enumerate(tensors) for piece in found]
        costs = [work.flops(piece.rows, piece.columns) for _, piece in listed]
        shapes = [(piece.rows, piece.columns) for _, piece in listed]
        owned = owners(costs, shapes, holders.ranks, loads)
        boxes = [[box(tensor, at) for at in holders.coordinates] for tensor, _ in tensors]
        jobs = []
        for (index, piece), rank in zip(listed, owned, strict=True):
            whole: Box = ((piece.start, piece.stop), *((0, size) for size in tensors[index][0].shape[1:]))
            parts = tuple(meet(whole, held) for held in boxes[index])
            jobs.append(Assignment(index, piece, whole, *holders.place(rank), parts))
        self.boxes = [found[holders.shard] for found in boxes]
        sizes = [rows * columns for rows, columns in shapes]
        order = list(range(len(jobs)))
        if len(holders.ranks) == 1 and tensors:  # no exchange: small rounds of one shape keep temporaries in the cache
            bucket = min(bucket, chunk(tensors[0][0].device))
            order = sorted(order, key=lambda i: sorted(shapes[i]))
        planned = rounds([sizes[i] for i in order], [owned[i] for i in order], bucket)
        self.rounds = [[jobs[order[i]] for i in members] for members in planned]

    @property
    def flops(self) -> int:
        """FLOPs of this rank's orthogonalization in a step."""
        return sum(self.work.flops(job.piece.rows, job.piece.columns) for jobs in self.rounds for job in self._own(jobs))

    def run(self, source: Source, apply: Apply) -> None:
        """Orthogonalize all matrices once. Every holder must call this."""
        active: list[Iterator[None]] = []
        for jobs in self.rounds:
            active.append(self._round(jobs, source, apply))
            active = [each for each in reversed(active) if next(each, self) is not self][::-1]
        while active:
            active = [each for each in active if next(each, self) is not self]

    def _own(self, jobs: Sequence[Assignment]) -> list[Assignment]:
        here = self.holders.copy, self.holders.shard
        return [job for job in jobs if (job.copy, job.shard) == here]

    def _round(self, jobs: Sequence[Assignment], source: Source, apply: Apply) -> Iterator[None]:
        """Run one round; other rounds may run at each ``yield``."""
        holders, own = self.holders, self._own(jobs)
        if holders.shards is None:
            matrices = source(own, [job.whole for job in own])
        else:
            mine = [job for job in jobs if job.copy == holders.copy]
            by_owner = [[job for job in mine if job.shard == shard] for shard in holders.shard_order]
            ways = (by_owner, [own] * len(by_owner), holders.shard_order)
            pieces = [self._parts(members, holders.shard) for members in by_owner]
            flat = [job for members in pieces for job in members]
            sent = source([job for job, _ in flat], [part for _, part in flat])
            gathered, work = self._all_to_all(sent, *self._sizes(*ways))
            yield
            work.wait()
            matrices = self._assembled(own, gathered)
        results = self.work.many([matrix.reshape(job.piece.rows, -1) for job, matrix in zip(own, matrices, strict=True)])
        del matrices
        wholes = [result.reshape(job.size) for job, result in zip(own, results, strict=True)]
        if holders.shards is None:
            parts = wholes
        else:
            back = [
                inside(whole, job.whole, part)
                for shard in holders.shard_order
                for job, whole in zip(own, wholes, strict=True)
                if (part := job.parts[shard]) is not None
            ]
            sent_sizes, received_sizes = self._sizes(*ways)
            returned, work = self._all_to_all(back, received_sizes, sent_sizes)
            yield
            work.wait()
            parts = _cut(returned, flat)
        ordered = own if holders.shards is None else [job for job, _ in flat]
        if holders.copies is None:
            self._apply(ordered, parts, apply)
            return
        yield from self._to_copies(jobs, ordered, parts, apply)

    def _to_copies(
        self, jobs: Sequence[Assignment], ordered: Sequence[Assignment], parts: Sequence[Tensor], apply: Apply
    ) -> Iterator[None]:
        """Give the results of this copy's jobs to the other copies, and apply those of all."""
        holders, shard = self.holders, self.holders.shard
        of_copies = [self._parts([job for job in jobs if job.copy == copy], shard) for copy in range(len(holders.bins))]
        width = max(sum(elements(part) for _, part in members) for members in of_copies)
        device = parts[0].device if parts else self._device()
        own = torch.zeros(width, dtype=self.work.dtype, device=device)
        by_job = {id(job): part for job, part in zip(ordered, parts, strict=True)}
        _fill(own, [by_job[id(job)] for job, _ in of_copies[holders.copy]])
        every = torch.empty(len(holders.copy_order) * width, dtype=own.dtype, device=device)
        work = getattr(dist, ALL_GATHER)(every, own, group=holders.copies, async_op=True)
        yield
        work.wait()
        for rows, copy in zip(every.view(-1, width), holders.copy_order, strict=True):
            self._apply([job for job, _ in of_copies[copy]], _cut(rows, of_copies[copy]), apply)

    def _apply(self, jobs: Sequence[Assignment], parts: Sequence[Tensor], apply: Apply) -> None:
        for job, update in zip(jobs, parts, strict=True):
            part = job.parts[self.holders.shard]
            assert part is not None
            apply(job, part, update)

    def _parts(self, jobs: Sequence[Assignment], shard: int) -> list[tuple[Assignment, Box]]:
        """Return the jobs of which a shard holds a part, with that part."""
        return [(job, part) for job in jobs if (part := job.parts[shard]) is not None]

    def _sizes(
        self, sent: Sequence[Sequence[Assignment]], received: Sequence[Sequence[Assignment]], order: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Return the elements of each member: those of this rank's shard that it owns, and those of its shard of own jobs."""
        own = self.holders.shard
        out = [sum(elements(job.parts[own]) for job in jobs) for jobs in sent]
        back = [sum(elements(job.parts[shard]) for job in jobs) for jobs, shard in zip(received, order, strict=True)]
        return out, back

    def _all_to_all(self, parts: Sequence[Tensor], sent: list[int], received: list[int]) -> tuple[Tensor, Any]:
        device = parts[0].device if parts else self._device()
        out = torch.empty(sum(sent), dtype=self.work.dtype, device=device)
        _fill(out, parts)
        back = torch.empty(sum(received), dtype=self.work.dtype, device=device)
        return back, dist.all_to_all_single(back, out, received, sent, group=self.holders.shards, async_op=True)

    def _device(self) -> torch.device:
        """Return the device of a rank without parts."""
        group = self.holders.shards or self.holders.copies
        return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")

    def _assembled(self, own: Sequence[Assignment], gathered: Tensor) -> list[Tensor]:
        """Return this rank's matrices from the parts of all shards."""
        wholes = [torch.empty(job.size, dtype=gathered.dtype, device=gathered.device) for job in own]
        at = 0
        for shard in self.holders.shard_order:
            for job, whole in zip(own, wholes, strict=True):
                part = job.parts[shard]
                if part is not None:
                    room = inside(whole, job.whole, part)
                    room.copy_(gathered[at : at + elements(part)].view(room.shape))
                    at += elements(part)
        return wholes


def _fill(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy tensors into a buffer, one after the other."""
    at = 0
    for part in parts:
        flat[at : at + part.numel()].view(part.shape).copy_(part)
        at += part.numel()


def _cut(flat: Tensor, members: Sequence[tuple[Assignment, Box]]) -> list[Tensor]:
    """Return the parts in a buffer, each in its shape."""
    found, at = [], 0
    for _, part in members:
        count = elements(part)
        found.append(flat[at : at + count].view(tuple(b - a for a, b in part)))
        at += count
    return found
