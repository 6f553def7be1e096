"""The choices, described: compression, exchange, optimizer, and the Strategy that joins them."""

from paceline.strategy.compression import BF16, COMPRESSIONS, FP32, TERNARY, Compression, DenseRule, Format
from paceline.strategy.exchange import (
    BUCKET_BYTES,
    EXCHANGES,
    FIRST_BUCKET_BYTES,
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
    "COMPRESSIONS",
    "EXCHANGES",
    "FIRST_BUCKET_BYTES",
    "FP32",
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
