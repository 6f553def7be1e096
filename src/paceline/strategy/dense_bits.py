"""bfloat16 for unencoded numbers: dense tensors, low-rank factors, uncompressed sums, and exchanges inside a node.

PyTorch's ``bf16_compress_wrapper`` does the same for its hooks. Flags and scales stay fp32. A message that would be longer
encoded than in fp32 stays fp32 too, within the codec's error bound.
"""

from __future__ import annotations

from typing import Protocol

from paceline.errors import UserError
from paceline.strategy.codec_place import IN_CARD, Place
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import BF16, FP32, Format
from paceline.strategy.exchanges import Exchange

BITS = (32, 16)
BITS_FIX = "give 32 for fp32 or 16 for bfloat16"


class PartlyDense(Protocol):
    """Fields of a ``GradientExchange`` on which its uncompressed numbers depend."""

    @property
    def compression(self) -> Compression: ...
    @property
    def exchange(self) -> Exchange: ...
    @property
    def codec_at(self) -> Place: ...
    @property
    def compress_pull(self) -> bool: ...
    @property
    def residual_bits(self) -> int: ...
    @property
    def description(self) -> Compression: ...


def dense_format(bits: int) -> Format:
    """Return the format of unencoded numbers."""
    return BF16 if bits == 16 else FP32


def check_dense_bits(x: PartlyDense) -> None:
    """Raise UserError if ``dense_bits`` 16 has no fp32 numbers to narrow, or cannot narrow them."""
    if not x.compression.compresses:
        raise UserError("dense gradients in 16 bits are what compression bf16 sends", "name compression bf16")
    if x.description.format == BF16 and not x.exchange.uses_nodes and x.compress_pull:
        raise UserError(f"{x.compression} sends no fp32 here", "leave dense_bits out")
    if x.exchange.uses_switch:
        raise UserError("a switch adds fp32 or integers, not bfloat16", "leave dense_bits out, or name exchange sharded")
    if x.codec_at is IN_CARD:
        raise UserError("hosts with a codec in the network card exchange fp32", "leave dense_bits out")
    if x.description.low_rank and x.residual_bits != 16:
        raise UserError(
            f"{x.compression} in 16 bits: PyTorch's hook works and keeps its residuals in the type that it sends",
            "give residual_bits=16 too",
        )
