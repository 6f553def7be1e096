"""The hinge: one frozen value that prediction scores, training executes and planning searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Generic

from paceline.errors import UserError, unknown
from paceline.hardware.device import PRECISIONS
from paceline.strategy.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, BucketPlan, T, buckets, fuse, plan_bucket
from paceline.strategy.compression import COMPRESSIONS, Compression
from paceline.strategy.compression_options import Given
from paceline.strategy.exchange import EXCHANGES, MOST_OTHERS, MOST_WORKERS, ONE_WAY, Traffic, describe
from paceline.strategy.formats import Level
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.phase import Phase, busiest_sent
from paceline.strategy.sharding import SHARDINGS, gathers, scatter, units


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """Gradients that are exchanged together: a bucket of DDP's, or several fused; a unit of FSDP's.

    ``gathers``: the all-gathers of its weights in one micro step (``zero1``: in one step).
    """

    tensors: list[T]
    plan: BucketPlan
    traffic: Traffic
    gathers: tuple[Phase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Every choice about a run.

    Attributes:
        global_batch_size: samples of one optimizer step over all workers; a multiple of ``world_size`` times
            ``grad_accum_steps``.
        exchange: empty means the compression's own default.
        options: parameters of the compression, such as ``{"bound": 2**-7}``; kept as pairs, only those that were given.
        ranks_per_node: of a hierarchical exchange; divides ``world_size``.
        servers: of ``parameter_server``: workers that own the parameters, equal shares of them, and serve beside their work.
        compress_pull: whether sums return encoded; False sends them back as fp32 (``sharded``, ``parameter_server``,
            ``hierarchical``).
        first_bucket_bytes, bucket_bytes: DDP's limits for the first bucket and for the others; ``bucket_bytes`` is also the
            least that FSDP gathers at once.
        grad_accum_steps: micro batches of one step on one worker, one after the other.
        sharding: ``ddp``, ``zero1``, ``zero2`` or ``zero3`` (``strategy/sharding.py``).
        recompute: whether the backward pass runs each block's forward pass again and keeps only the blocks' inputs.

    Raises:
        UserError: a name that does not exist, a compression that the exchange cannot carry, an option that the compression
            does not take, a batch or a number of ranks that does not divide, a sharding that does not go with the compression
            or the exchange, servers of an exchange that has none or more than workers.
    """

    world_size: int
    global_batch_size: int
    precision: str = "fp32"
    compression: str = "dense"
    exchange: str = ""
    options: Given = ()
    ranks_per_node: int = 1
    compress_pull: bool = True
    servers: int = 1
    optimizer: str = "momentum"
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    bucket_bytes: int = BUCKET_BYTES
    grad_accum_steps: int = 1
    sharding: str = "ddp"
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise unknown("compression", self.compression, COMPRESSIONS)
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.sharding not in SHARDINGS:
            raise unknown("sharding", self.sharding, SHARDINGS)
        carriers = COMPRESSIONS[self.compression].exchanges
        if not self.exchange:
            object.__setattr__(self, "exchange", carriers[0])
        if self.exchange not in EXCHANGES:
            raise unknown("exchange", self.exchange, EXCHANGES)
        if self.exchange not in carriers:
            why = "packed codes cannot be added" if self.exchange == "allreduce" else "its factors are all-reduced"
            raise UserError(
                f"exchange {self.exchange!r} cannot carry {self.compression}: {why}",
                f"legal for {self.compression}: {', '.join(carriers)}",
            )
        object.__setattr__(self, "options", COMPRESSIONS[self.compression].configured(self.options).values)
        self._check_sharding()
        self._check_numbers()

    def _check_sharding(self) -> None:
        if self.sharding == "ddp":
            return
        if self.compression != "dense":
            raise UserError(
                f"{self.sharding} does not go with {self.compression}: compressed gradients are exchanged whole, "
                f"{self.sharding} exchanges shares of them",
                "compress with sharding ddp, or share out with compression dense",
            )
        if self.exchange != "allreduce":
            raise UserError(
                f"{self.sharding} does not go with exchange {self.exchange!r}: shares travel by the engine's own collectives",
                "leave the exchange out",
            )

    def _check_numbers(self) -> None:
        for count, what in (
            (self.world_size, "workers"),
            (self.ranks_per_node, "ranks a node"),
            (self.grad_accum_steps, "micro steps"),
            (self.servers, "servers"),
            (self.first_bucket_bytes, "bytes in the first bucket"),
            (self.bucket_bytes, "bytes in a bucket"),
        ):
            if count < 1:
                raise UserError(f"{count} {what}", "give a whole number from 1 up")
        most = MOST_WORKERS.get(self.exchange, MOST_OTHERS)
        if self.world_size > most:
            raise UserError(
                f"{self.world_size:,} workers are more than exchange {self.exchange!r} can be predicted for",
                f"give at most {most:,} workers, or another exchange",
            )
        self._check_servers()
        batch, n, local, times = self.global_batch_size, self.world_size, self.ranks_per_node, self.grad_accum_steps
        if self.exchange == "hierarchical" and n % local:
            raise UserError(
                f"{n} workers are not whole nodes of {local} ranks", f"nearest legal: {_multiples(n, local)} workers"
            )
        if not self.compress_pull and self.exchange not in ONE_WAY:
            raise UserError(f"exchange {self.exchange!r} has no pull to send as fp32", f"legal: {', '.join(ONE_WAY)}")
        if batch < n * times or batch % (n * times):
            whom = f"{n} workers" if times == 1 else f"{n} workers in {times} micro steps"
            legal = f"nearest legal: {_multiples(batch, n * times)}"
            raise UserError(f"global batch {batch} does not divide among {whom}", legal)

    def _check_servers(self) -> None:
        if self.servers > 1 and self.exchange != "parameter_server":
            raise UserError(f"exchange {self.exchange!r} has no {self.servers} servers", "name exchange parameter_server")
        if self.servers > self.world_size:
            raise UserError(
                f"{self.servers} servers among {self.world_size} workers: a server is one of them",
                f"give at most {self.world_size} servers",
            )

    @property
    def micro_batch_size(self) -> int:
        """Samples of one micro step on one worker."""
        return self.global_batch_size // (self.world_size * self.grad_accum_steps)

    @property
    def exchanges_per_step(self) -> int:
        """How often gradients are exchanged in a step: after the last micro step, or after each where they are shared out."""
        return self.grad_accum_steps if SHARDINGS[self.sharding].gradients else 1

    @cached_property
    def description(self) -> Compression:
        """What the compression is and costs, with this strategy's options."""
        return COMPRESSIONS[self.compression].configured(self.options)

    def uncompressed(self) -> Strategy:
        """The same choices without compression: what a compression ratio is taken against."""
        return replace(self, compression="dense", options=(), compress_pull=True)

    def groups(self, parameters: Sequence[T], ready: Sequence[T], level: Level = "expected") -> list[Group[T]]:
        """What is exchanged together, in order, and how. See ``partition``; ``level``: which end of the range where lengths
        depend on values.
        """
        plans = self.partition(parameters, ready)
        alike = {plan: (self.traffic(plan, level), self.gathers(plan)) for plan in {plan for _, plan in plans}}
        return [Group(members, plan, *alike[plan]) for members, plan in plans]  # networks repeat themselves

    def partition(self, parameters: Sequence[T], ready: Sequence[T]) -> list[tuple[list[T], BucketPlan]]:
        """What is exchanged together, in order; the number of workers does not change it.

        DDP's buckets for ``allreduce``, which works in a bucket itself; else groups of their size that follow from the model
        alone, the last tensors first, and small ones fused. FSDP's units likewise, the last first.

        Args:
            parameters: in model order; ``ready`` in gradient order.
        """
        compression = self.description
        if SHARDINGS[self.sharding].weights:
            return [(unit, plan_bucket(unit, compression, ())) for unit in reversed(units(parameters, self.bucket_bytes))]
        dense = set(compression.dense(parameters))
        in_place = self.exchange == "allreduce" and not compression.low_rank
        made = buckets(ready if in_place else parameters[::-1], self.bucket_bytes, self.first_bucket_bytes)
        return [(b, plan_bucket(b, compression, dense)) for b in (made if self.exchange == "allreduce" else fuse(made))]

    def traffic(self, plan: BucketPlan, level: Level = "expected") -> Traffic:
        """How the gradients of one group are exchanged."""
        if SHARDINGS[self.sharding].weights:
            return scatter(plan.elements, self.precision, self.world_size)
        compression = self.description.configured(self.options, level)
        how = self.ranks_per_node, self.compress_pull, self.servers
        return describe(plan, compression, self.exchange, self.world_size, *how)

    def gathers(self, plan: BucketPlan) -> tuple[Phase, ...]:
        """The all-gathers of one group's weights."""
        return gathers(plan, self.sharding, self.precision, self.world_size)

    def exchange_phases(self, parameters: Sequence[T], ready: Sequence[T]) -> list[tuple[list[T], list[Phase]]]:
        """The groups' tensors with all collectives of each in one step. ``parameters`` in model order, ``ready`` in gradient
        order."""
        times = self.exchanges_per_step  # of the gathers too: those of zero1 belong to the update
        groups = self.groups(parameters, ready)
        return [(group.tensors, [*group.gathers, *group.traffic.phases] * times) for group in groups]

    def wire_bytes_per_device(self, parameters: Sequence[T], ready: Sequence[T]) -> int:
        """Bytes sent in one step by the rank that sends most; 0 for one worker."""
        return busiest_sent([phase for _, group in self.exchange_phases(parameters, ready) for phase in group])

    def to_json(self) -> dict[str, Any]:
        """A plain dict of every choice."""
        return {**{name: getattr(self, name) for name in _FIELDS}, "options": dict(self.options)}


_FIELDS = tuple(one.name for one in fields(Strategy))  # asdict would copy what cannot change


def _multiples(value: int, of: int) -> str:
    """The multiples of ``of`` on both sides of ``value``; the first one where that is the nearest."""
    low = max(value // of * of, of)
    return f"{low} or {low + of}" if value > of else f"{of}"
