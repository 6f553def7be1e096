"""Blocks of a codec that straddle tensors: the noise that a tensor takes from its neighbour, and the bytes of beginning every
tensor with a block, as exchanges do.

    python benchmarks/block_straddling.py --out benchmarks/results/block_straddling.csv

A row for each network and compression counts the blocks with several tensors, if one followed the other, and the bytes of one
message: so, with tensors padded to whole blocks, and with one more fp32 scale a tensor. With several ``owners`` the message has
a shard of each tensor of one FSDP2 unit, and ``small`` of them are dense, because they have less than a quarter of a block. A
row for two tensors of 1,536 normal elements has the relative error of the small one, straddling and with its own block, by
the ratio of their scales.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import append

from paceline import codecs
from paceline.strategy import GradientExchange
from paceline.strategy.buckets import plan_unit
from paceline.strategy.compression.formats import fills_blocks
from paceline.training.exchanges.exchange_setup import codec_of
from paceline.training.exchanges.gradients.tensor_layout import numbered

COMPRESSIONS = ("int8", "int4", "sign", "inceptionn-scaled")
BLOCK = 1024
"""Elements of a block in each of them by default."""
OWNERS = (1, 8, 64)
RATIOS = (1, 16, 256, 4096)
COLUMNS = (
    "network",
    "compression",
    "owners",
    "small",
    "tensors",
    "elements",
    "blocks",
    "straddling",
    "bytes",
    "padded_bytes",
    "scaled_bytes",
    "ratio",
    "error",
    "padded_error",
)


def networks() -> dict[str, Callable[[], Any]]:
    """Networks of the libraries that define them, on the meta device."""
    import transformers

    return {
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
        "bert-base": lambda: transformers.BertForPreTraining(transformers.BertConfig()),
        "resnet50": lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)),
    }


def counts(sizes: Sequence[int], block: int = BLOCK) -> tuple[int, int, int]:
    """Return blocks, blocks with several tensors, and elements with every tensor padded to whole blocks."""
    ends = np.cumsum([0, *sizes])
    straddling = {int(end) // block for end in ends[1:-1] if end % block}
    return -(-int(ends[-1]) // block), len(straddling), sum(-(-size // block) * block for size in sizes)


def of_network(name: str, build: Callable[[], Any], compression: str, owners: int = 1) -> dict[str, Any]:
    """Return the row of a network whose tensors are sharded by rows over ``owners``."""
    with torch.device("meta"):
        tensors = list(numbered(build().named_parameters()).values())
    exchange = GradientExchange(compression, "sharded")
    dense = exchange.description.dense(tensors)
    unit = plan_unit(tensors, exchange.description, set(dense))
    shapes = [(-(-rows // owners) * width, packed) for rows, width, packed in unit.shapes]
    sizes = [size for size, packed in shapes if packed]
    blocks, straddling, _ = counts(sizes)
    codec = codec_of(exchange)
    padded, rest = unit.encoded_shard(owners, codec.alignment)
    small = rest - sum(size for size, packed in shapes if not packed)
    whole, aligned = (codecs.max_payload_bytes(codec, count) for count in (sum(sizes), padded))
    aligned += 4 * small
    return {
        "network": name,
        "compression": compression,
        "owners": owners,
        "small": sum(not fills_blocks(size, codec.alignment) for size in sizes),
        "tensors": len(sizes),
        "elements": sum(sizes),
        "blocks": blocks,
        "straddling": straddling,
        "bytes": whole,
        "padded_bytes": aligned,
        "scaled_bytes": whole + 4 * len(sizes),
    }


def of_pair(compression: str, ratio: int, elements: int = 1536) -> dict[str, Any]:
    """Return the row of a tensor next to one with ``ratio`` times its scale."""
    codec = codec_of(GradientExchange(compression, "sharded"))
    rng = np.random.default_rng(44)
    small, large = (rng.standard_normal(elements).astype(np.float32) for _ in range(2))
    gap = np.zeros(-elements % BLOCK, np.float32)
    errors = []
    for between in (gap[:0], gap):
        message = codecs.encode(codec, np.concatenate([np.float32(ratio) * large, between, small]), codecs.key(1, 0), 0)
        decoded = codecs.decode(message)[-elements:]
        errors.append(float(np.linalg.norm(decoded - small) / np.linalg.norm(small)))
    return {"network": "two tensors", "compression": compression, "ratio": ratio, "error": errors[0], "padded_error": errors[1]}


def main() -> None:
    """Write all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name, build in networks().items():
        for compression in COMPRESSIONS:
            for owners in OWNERS:
                append(options.out, COLUMNS, of_network(name, build, compression, owners))
    for compression in COMPRESSIONS:
        for ratio in RATIOS:
            append(options.out, COLUMNS, of_pair(compression, ratio))


if __name__ == "__main__":
    main()
