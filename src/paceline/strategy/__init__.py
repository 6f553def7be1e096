"""Descriptions of the choices about a run (compression, exchange, optimizer), and the ``Strategy`` that joins them."""

from paceline.strategy.buckets import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    FUSE_BYTES,
    BucketPlan,
    buckets,
    fuse,
    plan_bucket,
)
from paceline.strategy.codec_place import PLACES
from paceline.strategy.compression.compression import Compression, DenseRule
from paceline.strategy.compression.compression_options import Option, parse_options
from paceline.strategy.compression.compressions import COMPRESSIONS
from paceline.strategy.compression.formats import BF16, FP32, HEADER_BYTES, TERNARY, Format
from paceline.strategy.exchanges import (
    CHUNK_ELEMENTS,
    EXCHANGES,
    CodecWork,
    Exchange,
    Traffic,
    carriers,
    shard_bounds,
)
from paceline.strategy.gradient_exchange import CLIP, GradientExchange
from paceline.strategy.local.local_recipes import LOCAL_RECIPES, LocalRecipe
from paceline.strategy.local_steps import LocalSteps
from paceline.strategy.optimizer import OPTIMIZERS, Optimizer
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.phase import Phase, busiest_sent, ring_bytes
from paceline.strategy.sharding import SHARDINGS, Sharding
from paceline.strategy.strategy import ExchangeGroup, Strategy

__all__ = [
    "BF16",
    "BUCKET_BYTES",
    "CHUNK_ELEMENTS",
    "CLIP",
    "COMPRESSIONS",
    "EXCHANGES",
    "FIRST_BUCKET_BYTES",
    "FP32",
    "FUSE_BYTES",
    "HEADER_BYTES",
    "LOCAL_RECIPES",
    "OPTIMIZERS",
    "PLACES",
    "SHARDINGS",
    "TERNARY",
    "BucketPlan",
    "CodecWork",
    "Compression",
    "DenseRule",
    "Exchange",
    "ExchangeGroup",
    "Format",
    "GradientExchange",
    "LocalRecipe",
    "LocalSteps",
    "Optimizer",
    "Option",
    "Parallelism",
    "Phase",
    "Sharding",
    "Strategy",
    "Traffic",
    "buckets",
    "busiest_sent",
    "carriers",
    "fuse",
    "parse_options",
    "plan_bucket",
    "ring_bytes",
    "shard_bounds",
]
