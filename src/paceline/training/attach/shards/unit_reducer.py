"""Reducers of the gradients of one FSDP2 unit: by the engine, by an exchange with the owners, or between HSDP's replicas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from paceline.codecs import Key, key
from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.strategy.compression.formats import MOST_PADDED
from paceline.training.attach.shards.fsdp_units import Unit
from paceline.training.attach.shards.sharded_state import KINDS, Holding, mesh_of
from paceline.training.attach.shards.unit_exchange import (
    Owed,
    OwnerSetup,
    ShardedTensor,
    UnitGradients,
    UnitLayout,
    reduce_unit,
)
from paceline.training.exchanges import begin_allreduce
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import codec_at, setup_at
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.residual_keeping import WorkingCopies, keeping_of
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout, TensorSlice, TensorSpec, clip
from paceline.training.exchanges.node_sums import reduce_scatter
from paceline.training.exchanges.wires.collectives import Wire


class Draws(NamedTuple):
    """Seed and step of the stochastic rounding."""

    seed: int
    step: int


class UnitReducer(ABC):
    """Reducer of the gradients of one unit to this rank's part.

    Attributes:
        world: a wire among the ranks that share the unit out.
        replicas: in HSDP, a wire among the ranks with the same shard; else ``world``.
        encodes: whether something is sent in a format that has no NaN.
        holds: True if this backward pass only accumulates, because FSDP2 requests the sum over the replicas in a later one.
        narrow: the type in which the engine adds up wider gradients; None: in theirs.
    """

    world: Wire
    replicas: Wire
    encodes = False
    holds = False
    narrow: torch.dtype | None = None

    def reduce(
        self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, draws: Draws, dense: bool, compressed: bool
    ) -> bool:
        """Write this rank's row of the divided sum of ``matrix``, (owners x columns), over all ranks into ``output``.

        Args:
            dense: send everything uncompressed, as in the rest of a step that had a NaN or an infinity.
            compressed: whether the rows are those of all tensors of the unit. Others are sent by the engine.

        Returns:
            True if a gradient was NaN, infinite or too large for the codec.
        """
        if not compressed:
            return self._by_engine(output, matrix, divisor, self.narrow if matrix.element_size() > 2 else None)
        return self._reduce(output, matrix, divisor, draws, dense)

    def _by_engine(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, dtype: Any = None) -> bool:
        """Reduce with the engine's collectives in the type of ``matrix``, or in ``dtype``."""
        wire, part = self.world, output
        if dtype not in (None, matrix.dtype):
            with wire.meter.span("encode", "codec"):
                matrix, divisor = matrix.mul(1 / divisor).to(dtype), 1.0
            part = matrix.new_empty(output.numel())
        with wire.pool.lent() as buffers:
            wire.reduce_scatter(part, matrix, "reduce_scatter", buffers).wait()
        if self.replicas is not wire:
            self.replicas.all_reduce(part).wait()
        if divisor != 1:
            part.div_(divisor)
        if part is not output:
            output.copy_(part)
        return not is_finite(output)

    @abstractmethod
    def _reduce(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, draws: Draws, dense: bool) -> bool: ...

    @property
    def wires(self) -> Sequence[Wire]:
        """All wires that the reducer uses."""
        return (self.world, self.replicas)

    @property
    def holding(self) -> Holding | None:
        """Residuals on this rank; None without error feedback."""
        return None

    @property
    def agrees(self) -> Wire | None:
        """Wire whose ranks learn from an exchange whether the gradients of all of them were fit; None without one."""
        return None

    def end_step(self, keep: bool) -> None:  # noqa: B027  # most reducers keep nothing
        """Keep the residuals and the momentum written in this step, or restore the earlier ones."""

    def owed_to(self, tensor: ShardedTensor, kind: str) -> torch.Tensor | None:
        """Return this rank's residual or ``velocity`` of a compressed tensor, (rows, shard), to read or fill; None without."""
        return None

    def feedback_scale(self, factor: float) -> None:
        """Multiply residuals and momentum by the factor that a gradient scaler applied to gradients."""
        for tensor in self.compressed:
            for kind in KINDS:
                values = self.owed_to(tensor, kind)
                if values is not None:
                    values.mul_(factor)

    @property
    def compressed(self) -> Sequence[ShardedTensor]:
        """Tensors that a codec encodes."""
        return ()


class EngineReducer(UnitReducer):
    """Reducer by the wire's reduce-scatter in the type of the gradients or bfloat16, and its all-reduce between replicas."""

    def __init__(self, world: Wire, replicas: Wire, bits: int) -> None:
        self.world, self.replicas = world, replicas
        self._dtype = torch.bfloat16 if bits == 16 else None

    def _reduce(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, draws: Draws, dense: bool) -> bool:
        return self._by_engine(output, matrix, divisor, self._dtype)


class OwnerReducer(UnitReducer):
    """Reducer that sends encoded rows to their owners, over all ranks or, after a dense step inside nodes, between nodes.

    In one node nothing is encoded. Residuals from a state are added to the next sum that counts.
    """

    def __init__(
        self,
        setup: OwnerSetup,
        exchange: GradientExchange,
        unit: Unit,
        dense: Collection[str],
        workspace: Workspace,
        copies: WorkingCopies,
    ) -> None:
        self.world = self.replicas = setup.world
        self.device = unit.device
        self.setup, self.layout = setup, UnitLayout(unit.tensors, dense, setup.codec.alignment)
        self._owners, self._room = unit.owners, workspace
        self._first = unit.first * (MOST_PADDED if setup.codec.alignment > 1 else 1)
        self._exchange, self._feedback = exchange, exchange.description.error_feedback
        self._alone = setup.rows == 1
        self.encodes = exchange.description.lossy and bool(self.layout.packed) and not self._alone
        self._keeping, self._copies = keeping_of(exchange), copies
        self.narrow = torch.bfloat16 if setup.narrow else None
        self.owed: Owed | None = None
        self._draft: Owed | None = None  # what the step leaves; a later unit may still show a NaN
        self._written = False

    def _reduce(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, draws: Draws, dense: bool) -> bool:
        owed, left = self._before_and_after() if self._feedback and not self._alone else (None, None)
        if owed is not None and not self._keeping.in_place(matrix.device):
            owed = left = self._taken(owed, matrix.device)
        gradients = UnitGradients(
            matrix.view(self._owners, -1), owed, left, key(draws.seed, draws.step, self.world.rank), self._first
        )
        setup = replace(self.setup, codec=codec_at(self._exchange, self.setup.codec, draws.step))
        row, fit = reduce_unit(setup, self.layout, gradients, self._room.of(matrix.device), dense)
        if fit and left is not None:
            for tensor, rest in self._clip(row, output, divisor).items():
                columns = next(columns for other, columns in self.layout.packed if other.name == tensor)
                left.residual[setup.outer.rank, columns] += rest
        if fit and left is not None and left is not self._draft:
            self._put_away(left, gradients)
        if self._alone and self.owed is not None and not self._written:
            self._pay(row, self.owed)
        torch.div(row, divisor, out=output) if output.dtype == row.dtype else output.copy_(row.div_(divisor))
        self._written |= self._feedback and fit
        return not fit

    @property
    def wires(self) -> Sequence[Wire]:
        """All wires that the reducer uses."""
        return (self.world, self.setup.outer, *(() if self.setup.inner is None else (self.setup.inner,)))

    @property
    def agrees(self) -> Wire | None:
        """Wire whose ranks learn whether all gradients were fit; see ``UnitReducer``."""
        return self.world if self.encodes else None

    def end_step(self, keep: bool) -> None:
        """Keep or restore residuals; see ``UnitReducer``."""
        if keep and self._written:
            self.owed, self._draft = self._draft, None if self._alone else self.owed
        self._written = False

    def nothing_owed(self, device: torch.device) -> Owed:
        """Return error feedback before the first exchange."""
        shape = (self.setup.rows, self.layout.compressed)
        zeros = partial(self._keeping.zeros, shape, device)
        return Owed(zeros(), zeros() if self.setup.momentum else None)

    def _clip(self, row: torch.Tensor, output: torch.Tensor, divisor: float) -> dict[str, torch.Tensor]:
        """Clip this rank's sums to what ``output`` holds after the division. Returns the rest by tensor."""
        slices = [TensorSlice(t.whole, t.start, t.start + t.shard) for t, _ in self.layout.packed]
        return clip(row, [GradientSlice(piece, output[piece.start : piece.stop]) for piece in slices], divisor)

    def _before_and_after(self) -> tuple[Owed, Owed]:
        """Return the residuals, and the buffer for the residuals after an exchange."""
        if self.owed is None or self._draft is None:
            self.owed, self._draft = self.owed or self.nothing_owed(self.device), self.nothing_owed(self.device)
        return self._draft if self._written else self.owed, self._draft  # a unit may be reduced twice in a step

    def _pay(self, row: torch.Tensor, owed: Owed) -> None:
        """Add the residuals to this rank's sum."""
        for tensor, columns in self.layout.packed:
            row[tensor.start : tensor.start + tensor.shard] += owed.residual[0, columns].to(row)

    def _taken(self, owed: Owed, device: torch.device) -> Owed:
        """Return a copy of stored values as fp32 on the codec's device."""
        residual = self._copies.of("residual", owed.residual, device)
        return Owed(residual, None if owed.velocity is None else self._copies.of("velocity", owed.velocity, device))

    def _put_away(self, left: Owed, gradients: UnitGradients) -> None:
        """Store the values that an exchange has left in a working copy."""
        low, high = gradients.draws
        for number, kind in enumerate(KINDS):
            kept = getattr(self._draft, kind)
            if kept is not None:
                self._keeping.put(getattr(left, kind), kept, Key(low, high ^ number), gradients.first)

    @property
    def compressed(self) -> Sequence[ShardedTensor]:
        """Tensors that a codec encodes; see ``UnitReducer``."""
        return [tensor for tensor, _ in self.layout.packed]

    @cached_property
    def holding(self) -> Holding | None:
        """Residuals on this rank; see ``UnitReducer``."""
        if not self._feedback:
            return None
        inner, outer = self.setup.inner, self.setup.outer
        mesh = mesh_of(outer.group, None if inner is None else inner.group, self.device.type)
        places, place = (1, 0) if inner is None else (inner.world_size, inner.rank)
        return Holding(mesh, outer.world_size, places, place, self.setup.rows, self.world)

    def owed_to(self, tensor: ShardedTensor, kind: str) -> torch.Tensor | None:
        """Return this rank's residual of a tensor; see ``UnitReducer``."""
        if not self._feedback:
            return None
        if self.owed is None:
            self.owed = self.nothing_owed(self.device)
        columns = next(columns for other, columns in self.layout.packed if other is tensor)
        values: torch.Tensor | None = getattr(self.owed, kind)
        return None if values is None else values[:, columns]


class ReplicaReducer(UnitReducer):
    """Reducer for HSDP: the engine's reduce-scatter in the node, and an exchange of the shard between the replicas."""

    def __init__(
        self,
        world: Wire,
        setup: ExchangeSetup | None,
        replicas: Wire,
        unit: Unit,
        exchange: GradientExchange,
        dense: Collection[str],
    ) -> None:
        self.world, self.replicas, self.setup = world, replicas, setup
        self.device = setup.device(unit.device) if setup else world.device
        self._exchange, self._unit = exchange, unit
        self.narrow = torch.bfloat16 if exchange.dense_bits == 16 else None
        first = unit.first + world.rank * unit.columns
        specs = [TensorSpec(t.name, (t.shard,), first + t.start) for t in unit.tensors]
        self.layout = Layout(specs, dense, exchange.description.format.block)
        self._workspace = torch.empty(0, dtype=torch.float32)
        self._collected: torch.Tensor | None = None  # sums inside the group of shards of passes that held
        self.encodes = setup is not None and self.layout.compressed > 0 and exchange.description.lossy
        if self.feedback is not None:
            self.feedback.holds_back = True

    def _by_engine(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, dtype: Any = None) -> bool:
        if self._collected is not None:
            raise UserError(
                f"{self._unit.tensors[0].name} and others of its unit: some got no gradient, and "
                "set_requires_all_reduce(False) has collected gradients of all of them",
                "leave set_requires_all_reduce out, or use set_requires_gradient_sync",
            )
        return super()._by_engine(output, matrix, divisor, dtype)

    @property
    def holds(self) -> bool:  # type: ignore[override]
        """True if this backward pass only accumulates; see ``UnitReducer``."""
        return not self._unit.adds_replicas

    @property
    def feedback(self) -> Feedback | None:
        """Error feedback of the encodings between the replicas."""
        return self.setup.feedback if self.setup else None

    def end_step(self, keep: bool) -> None:
        """Keep or restore residuals; see ``UnitReducer``."""
        if self.feedback is not None:
            self.feedback.end_step(keep)

    def _reduce(self, output: torch.Tensor, matrix: torch.Tensor, divisor: float, draws: Draws, dense: bool) -> bool:
        part = matrix.new_empty(output.numel())
        part = reduce_scatter(self.world, part, matrix, self.narrow is not None).float()
        if self._collected is not None:
            part += self._collected
            self._collected = None
        if self.holds:  # the optimizer finds zeros until the replicas are added up
            self._collected = part
            output.zero_()
            return False
        if self.setup is None:
            begin_allreduce(part, self._exchange.description.format, self.replicas)()
            bad = not is_finite(part)
        else:
            wanted, device = room(self.setup, self.layout), self.setup.device(part.device)
            if self._workspace.numel() < wanted or self._workspace.device != device:
                self._workspace = torch.empty(wanted, dtype=torch.float32, device=device)
            sizes = [t.shard for t in self._unit.tensors]
            parts = dict(zip((t.name for t in self._unit.tensors), part.split(sizes), strict=True))
            workspace = self._workspace[:wanted]
            gradients = Gradients(layout=self.layout, parts=parts, workspace=workspace, seed=draws.seed, step=draws.step)
            bad = exchange_group(setup_at(self.setup, self._exchange, draws.step), gradients, dense)
            if self.feedback is not None and not bad:
                self._clip(self.feedback, part, output, divisor / self.replicas.world_size, device)
        output.copy_(part.mul_(self.replicas.world_size / divisor))  # the exchange has divided by the replicas
        return bad

    def _clip(self, feedback: Feedback, part: torch.Tensor, output: torch.Tensor, divisor: float, device: torch.device) -> None:
        """Clip the means between the replicas to what ``output`` holds after the division. The rest becomes residuals."""
        slices = [TensorSlice(t.whole, t.start, t.start + t.shard) for t in self.compressed]
        rest = clip(part, [GradientSlice(piece, output[piece.start : piece.stop]) for piece in slices], divisor)
        feedback.take_back(self.layout, 0, self.layout.compressed, rest, device)

    @property
    def compressed(self) -> Sequence[ShardedTensor]:
        """Tensors that a codec encodes; see ``UnitReducer``."""
        encoded = {piece.tensor.name for piece in self.layout.packed(0, self.layout.compressed)}
        return [t for t in self._unit.tensors if t.name in encoded]

    @cached_property
    def holding(self) -> Holding | None:
        """Residuals on this rank; see ``UnitReducer``."""
        if self.feedback is None:
            return None
        mesh = mesh_of(self.replicas.group, self.world.group, self.device.type)
        return Holding(mesh, self.replicas.world_size, self.world.world_size, self.world.rank, 1, self.world)

    def owed_to(self, tensor: ShardedTensor, kind: str) -> torch.Tensor | None:
        """Return this rank's residual of a tensor; see ``UnitReducer``."""
        if self.feedback is None or (kind == "velocity" and not self.feedback.momentum):
            return None
        memory = self.feedback.residual if kind == "residual" else self.feedback.velocity
        flat = memory.flat(self.layout, self.device)
        piece = next(p for p in self.layout.packed(0, self.layout.compressed) if p.tensor.name == tensor.name)
        return flat[piece.start : piece.stop].view(1, -1)


class Workspace:
    """One fp32 buffer per device that all units share, because their exchanges run one after another."""

    def __init__(self) -> None:
        self._buffers: dict[torch.device, torch.Tensor] = {}

    def of(self, device: torch.device) -> Any:
        """Return a function that returns buffers on ``device`` by number of elements."""

        def buffer(count: int) -> torch.Tensor:
            if device not in self._buffers or self._buffers[device].numel() < count:
                self._buffers[device] = torch.empty(count, dtype=torch.float32, device=device)
            return self._buffers[device][:count]

        return buffer
