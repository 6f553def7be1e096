"""The hinge: one frozen value that prediction scores, training executes and planning searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.errors import UserError, unknown
from paceline.hardware.device import PRECISIONS
from paceline.strategy.compression import COMPRESSIONS, Compression
from paceline.strategy.exchange import (
    BUCKET_BYTES,
    EXCHANGES,
    FIRST_BUCKET_BYTES,
    Phase,
    T,
    buckets,
    busiest_sent,
    phases,
    plan_bucket,
)
from paceline.strategy.optimizer import OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Every choice about a run.

    Attributes:
        global_batch_size: samples of one optimizer step over all workers; a multiple of ``world_size``.
        exchange: empty means the compression's own default.
        first_bucket_bytes, bucket_bytes: DDP's limits for the first bucket and for the others.

    Raises:
        UserError: a name that does not exist, a compression that the exchange cannot carry, a batch that does not divide.
    """

    world_size: int
    global_batch_size: int
    precision: str = "fp32"
    compression: str = "dense"
    exchange: str = ""
    optimizer: str = "momentum"
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise unknown("compression", self.compression, COMPRESSIONS)
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        carriers = COMPRESSIONS[self.compression].exchanges
        if not self.exchange:
            object.__setattr__(self, "exchange", carriers[0])
        if self.exchange not in EXCHANGES:
            raise unknown("exchange", self.exchange, EXCHANGES)
        if self.exchange not in carriers:
            raise UserError(
                f"exchange {self.exchange!r} cannot carry {self.compression}: packed codes cannot be added",
                f"legal for {self.compression}: {', '.join(carriers)}",
            )
        if self.world_size < 1:
            raise UserError(f"{self.world_size} workers", "give a whole number from 1 up")
        batch, n = self.global_batch_size, self.world_size
        if batch < n or batch % n:
            low = max(batch // n * n, n)
            near = f"{low} or {low + n}" if batch > n else f"{n}"
            raise UserError(f"global batch {batch} does not divide among {n} workers", f"nearest legal: {near}")

    @property
    def micro_batch_size(self) -> int:
        """Samples of one step on one worker."""
        return self.global_batch_size // self.world_size

    @property
    def description(self) -> Compression:
        """What the compression is and costs."""
        return COMPRESSIONS[self.compression]

    def exchange_phases(self, parameters: Sequence[T], ready: Sequence[T]) -> list[tuple[list[T], list[Phase]]]:
        """DDP's buckets with the collectives of each. ``parameters`` in model order, ``ready`` in gradient order."""
        dense = set(self.description.dense(parameters))
        return [
            (bucket, phases(plan_bucket(bucket, self.description, dense), self.description, self.exchange, self.world_size))
            for bucket in buckets(ready, self.bucket_bytes, self.first_bucket_bytes)
        ]

    def wire_bytes_per_device(self, parameters: Sequence[T], ready: Sequence[T]) -> int:
        """Bytes sent in one step by the rank that sends most; 0 for one worker."""
        return busiest_sent([phase for _, bucket in self.exchange_phases(parameters, ready) for phase in bucket])

    def to_json(self) -> dict[str, Any]:
        """A plain dict of every choice."""
        return asdict(self)
