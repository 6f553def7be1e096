"""The choices, described: compression, exchange, optimizer, and the Strategy that joins them."""

from paceline.strategy.compression import BF16, COMPRESSIONS, FP32, TERNARY, Compression, DenseRule, Format
from paceline.strategy.exchange import (
    BUCKET_BYTES,
    CHUNK_ELEMENTS,
    EXCHANGES,
    FIRST_BUCKET_BYTES,
    FUSE_BYTES,
    BucketPlan,
    Phase,
    buckets,
    busiest_sent,
    phases,
    plan_bucket,
    shard_bounds,
)
from paceline.strategy.optimizer import OPTIMIZERS, Optimizer
from paceline.strategy.strategy import Strategy

__all__ = [
    "BF16",
    "BUCKET_BYTES",
    "CHUNK_ELEMENTS",
    "COMPRESSIONS",
    "EXCHANGES",
    "FIRST_BUCKET_BYTES",
    "FP32",
    "FUSE_BYTES",
    "OPTIMIZERS",
    "TERNARY",
    "BucketPlan",
    "Compression",
    "DenseRule",
    "Format",
    "Optimizer",
    "Phase",
    "Strategy",
    "buckets",
    "busiest_sent",
    "phases",
    "plan_bucket",
    "shard_bounds",
]
