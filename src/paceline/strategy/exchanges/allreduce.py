"""All-reduce of the engine, in place in each of DDP's buckets, without headers."""

from __future__ import annotations

from typing import final

from paceline.strategy.buckets import BucketPlan
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import FP32, Format
from paceline.strategy.exchanges.exchange import Exchange
from paceline.strategy.exchanges.traffic import FLAGS, CodecWork, Traffic
from paceline.strategy.phase import Phase


@final
class AllReduce(Exchange):
    """All-reduce of numbers by the engine (gloo, NCCL).

    Low-rank compressions send a flag, then the dense part, then the two factors.
    """

    __slots__ = ()
    name, position = "allreduce", 0
    by_engine = reduces_to_owners = True
    refusal = "packed codes cannot be added"
    most_workers = 1 << 20

    def carries(self, compression: Compression) -> bool:
        """Return whether the engine can add the compression's messages."""
        return compression.adds

    def describe(
        self,
        plan: BucketPlan,
        compression: Compression,
        world_size: int,
        ranks_per_node: int = 1,
        compress_pull: bool = True,
        servers: int = 1,
        in_card: bool = False,
        dense: Format = FP32,
    ) -> Traffic:
        """Return the all-reduces of one bucket; see ``Exchange.describe``."""
        del ranks_per_node, compress_pull, servers, in_card
        parts = [("allreduce", compression.format.push_bytes(plan.elements))]
        if compression.low_rank:
            counts = {"allreduce": plan.dense, "factor_p": plan.factors[0], "factor_q": plan.factors[1]}
            parts = [(name, dense.push_bytes(count)) for name, count in counts.items()]
        work = CodecWork() if compression.format == FP32 else CodecWork(encode=plan.compressed, decode=plan.compressed)
        collectives = tuple(Phase(name, (size,), world_size) for name, size in parts if size)
        shared = (Phase("scales", (4 * FLAGS,), world_size),) if compression.low_rank else ()
        return Traffic(shared, collectives, (), work, CodecWork(), CodecWork(), 1, 1.0)


ALLREDUCE = AllReduce()
