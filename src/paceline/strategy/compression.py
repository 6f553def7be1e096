"""Compressions, described: bytes on the wire, which tensors stay dense, what the codec costs. The work itself is elsewhere.

Training sends exactly the bytes that these descriptions say; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod
from typing import Protocol


class NamedShape(Protocol):
    """Anything with the name and the shape of a tensor, such as ``workload.Parameter``."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Format:
    """How the elements of a tensor travel: to the owner of a shard (push) and their sum or mean back (pull).

    Attributes:
        element_bits: bits of one element on the push; the pull may need more, see ``pull_bits``.
        group: elements that share whole bytes; a message of n elements takes ``ceil(n / group) * group * bits / 8`` bytes.
        grows: the pull carries an exact integer sum of ``world_size`` ternaries, 2N+1 levels (TernGrad, section 3.2).
    """

    name: str
    element_bits: int
    group: int
    grows: bool = False

    def pull_bits(self, world_size: int) -> int:
        """Bits of one element of the sum over ``world_size`` workers."""
        return (2 * world_size).bit_length() if self.grows else self.element_bits

    def push_bytes(self, count: int) -> int:
        """Bytes of ``count`` elements sent to their owner."""
        return -(-count // self.group) * self.group * self.element_bits // 8

    def pull_bytes(self, count: int, world_size: int) -> int:
        """Bytes of the sum of ``count`` elements sent back."""
        return -(-count // self.group) * self.group * self.pull_bits(world_size) // 8


FP32 = Format("fp32", 32, 1)
BF16 = Format("bf16", 16, 1)
TERNARY = Format("ternary", 2, 8, grows=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRule:
    """Which tensors are sent dense although a compression is on.

    Attributes:
        min_elements: smaller tensors stay dense; their bytes are few and their share of the error is not.
        last_layer: the layer that makes the logits stays dense: its gradients are skewed (TernGrad, README). It is taken to
            be the owner of the last matrix in model order; where the logits reuse an embedding, name that in ``names``.
        names: patterns as in a shell (``*.embedding.*``) of further tensors to keep dense.
    """

    min_elements: int = 1024
    last_layer: bool = True
    names: tuple[str, ...] = ()

    def dense(self, tensors: Sequence[NamedShape]) -> Mapping[str, str]:
        """Names of the tensors that stay dense, each with the reason. ``tensors`` in ``named_parameters()`` order."""
        matrices = [t.name for t in tensors if len(t.shape) >= 2]
        last = matrices[-1] if matrices and self.last_layer else ""
        owner = last.rpartition(".")[0]  # empty for a tensor of the model itself, which then stands alone
        reasons: dict[str, str] = {}
        for tensor in tensors:
            if any(fnmatch(tensor.name, pattern) for pattern in self.names):
                reasons[tensor.name] = "named by the user"
            elif tensor.name == last or (owner and tensor.name.rpartition(".")[0] == owner):
                reasons[tensor.name] = "last layer"
            elif prod(tensor.shape) < self.min_elements:
                reasons[tensor.name] = f"fewer than {self.min_elements} elements"
        return reasons

    def __str__(self) -> str:
        parts = ["the last layer"] if self.last_layer else []
        parts.append(f"tensors of fewer than {self.min_elements} elements")
        parts += [f"tensors named {', '.join(self.names)}"] if self.names else []
        return "dense: " + ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """A compression as prediction, planning and the command line see it.

    Attributes:
        format: of the tensors that are compressed; the others travel as fp32.
        exchanges: that can carry it, the default first.
        rule: which tensors stay dense; None where all are treated alike.
        unbiased: the expected decoded gradient is the gradient.
        shares_scale: one fp32 maximum per compressed tensor (and one flag) is all-reduced before encoding.
        encode_bytes, decode_bytes: memory traffic of the codec per element, for its roofline time.
    """

    name: str
    title: str
    format: Format
    exchanges: tuple[str, ...]
    rule: DenseRule | None
    unbiased: bool
    shares_scale: bool
    encode_bytes: float
    decode_bytes: float
    citation: str

    def dense(self, tensors: Sequence[NamedShape]) -> Mapping[str, str]:
        """Names of the tensors that this compression leaves dense, with the reason."""
        return self.rule.dense(tensors) if self.rule else {}


_ALL = ("allreduce", "sharded", "parameter_server")

COMPRESSIONS: Mapping[str, Compression] = {
    c.name: c
    for c in (
        Compression(
            name="dense",
            title="no compression",
            format=FP32,
            exchanges=_ALL,
            rule=None,
            unbiased=True,
            shares_scale=False,
            encode_bytes=0,
            decode_bytes=0,
            citation="",
        ),
        Compression(
            name="bf16",
            title="gradients rounded to bfloat16",
            format=BF16,
            exchanges=_ALL,
            rule=None,
            unbiased=False,
            shares_scale=False,
            encode_bytes=6,
            decode_bytes=6,
            citation="Kalamkar et al. 2019, arXiv 1905.12322",
        ),
        Compression(
            name="terngrad",
            title="TernGrad: stochastic ternary gradients",
            format=TERNARY,
            exchanges=("sharded", "parameter_server"),
            rule=DenseRule(),
            unbiased=True,
            shares_scale=True,
            # Two reads (moments and extremes, then the draw) and two bits out; the integer sum in and fp32 out.
            encode_bytes=8.25,
            decode_bytes=4.5,
            citation="Wen et al. 2017, TernGrad, NIPS, arXiv 1705.07878",
        ),
    )
}
