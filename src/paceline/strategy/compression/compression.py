"""Description of a compression: bytes on the wire, tensors that stay dense, cost of the codec.

Training sends exactly the bytes of these descriptions. A test checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from paceline.errors import UserError, check_count, check_flag, shown
from paceline.hardware.device import Fact
from paceline.strategy.compression.compression_options import Given, Option, Values, resolve
from paceline.strategy.compression.formats import FP32, Format, PayloadBound, fills_blocks

MEASURED = "median of 15 calls on 100 MB, one core of an AMD EPYC with AVX-512; benchmarks/results/codec_speed.csv"
ASSUMED = "assumption, not measured"


@dataclass(frozen=True, slots=True)
class CodecRate:
    """Rates of one core in bytes/s of fp32: to encode, and to decode and add. On GPUs memory traffic is the limit instead."""

    encode: Fact
    decode: Fact


def cpu_rate(encode: float, decode: float, source: str = MEASURED, date: str = "2026-11-21") -> CodecRate:
    """Return a rate given in GB/s. After a new measurement, change the compression's declaration."""
    return CodecRate(Fact(encode * 1e9, source, date), Fact(decode * 1e9, source, date))


class NamedShape(Protocol):
    """Object with the name and the shape of a tensor, such as ``workload.Parameter``."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRule:
    """Rule for the tensors that are sent uncompressed.

    Attributes:
        min_elements: smaller tensors stay dense; their bytes are few and their share of the error is not.
        last_layer: the layer that makes the logits stays dense: its gradients are skewed (TernGrad, README), and a codec that
            is coarse and forgets its error loses them. It is taken to be the owner of the last matrix in model order; where
            the logits reuse an embedding, name that in ``names``.
        names: patterns as in a shell (``*.embedding.*``) of further tensors to keep dense.

    Raises:
        UserError: a value of another type, or below 0.
    """

    min_elements: int = 1024
    last_layer: bool = True
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_elements", check_count(self.min_elements, "elements as min_elements", least=0))
        check_flag(self.last_layer, "last_layer")
        if not isinstance(self.names, tuple | list) or not all(isinstance(name, str) for name in self.names):
            raise UserError(f"names={shown(self.names)}", 'give patterns such as ("*.embedding.*",)')
        object.__setattr__(self, "names", tuple(self.names))

    def dense(self, tensors: Sequence[NamedShape]) -> Mapping[str, str]:
        """Return the names of the tensors that stay dense, each with the reason. ``tensors`` must be in the order of
        ``named_parameters()``."""
        matrices = [t.name for t in tensors if len(t.shape) >= 2]
        last = matrices[-1] if matrices and self.last_layer else ""
        owner = last.rpartition(".")[0]  # empty for a tensor of the model itself
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
    """Compression with its option values. Prediction, planning and the command line use nothing else of a compression.

    Attributes:
        layout: returns the format for option values; see ``format``.
        cpu_rate: bytes/s of fp32 on one core of a CPU.
        rule: default rule for tensors that stay dense; None: all tensors are treated the same.
        preferred: name of its default exchange; empty: the first that can carry it.
        codec: name of its codec, if different; see ``codec_name``.
        options: its parameters. ``values``: parameters that the user gave, see ``configured``.
        adds: True if the engine's all-reduce can add its messages.
        unbiased: True if the expected decoded gradient is the gradient.
        clips: True if it clips gradients before it encodes them.
        shares_scale: True if one fp32 maximum a compressed tensor is all-reduced before encoding.
        error_feedback: True if the error of a step's encoding is added to the next gradient: 4 bytes a parameter.
        low_rank: True if two factors of each matrix are all-reduced instead of it.
        in_place: True if a CPU encodes gradients directly and writes sums back. Others pass through one buffer first, and back.
        in_card: True if a network card can do it, by elements or by blocks of a packet.
        card_scales: True if a card scales packet by packet. In a ring the ranks would then end with different sums.
        switch_sums: kinds of sums (``Aggregation.sums``) of which a switch must support one; empty: no switch can.
        encode_bytes, decode_bytes: memory traffic of the codec per element, for its roofline time.
        level: which end of a data-dependent length ``format`` describes.
        auto_rank: place among those that ``auto`` tries next to dense; 0: it does not. They are those within 0.5 points of
            dense in the project's own accuracy study; fp8 in three runs of LeNet-5 on digits alone, bf16-coded as bf16.
    """

    name: str
    title: str
    layout: Callable[[Mapping[str, float]], Format]
    cpu_rate: CodecRate
    rule: DenseRule | None
    unbiased: bool
    encode_bytes: float
    decode_bytes: float
    citation: str
    preferred: str = ""
    codec: str = ""
    options: tuple[Option, ...] = ()
    values: Values = ()
    adds: bool = False
    clips: bool = False
    shares_scale: bool = False
    error_feedback: bool = False
    low_rank: bool = False
    in_place: bool = False
    in_card: bool = False
    card_scales: bool = False
    switch_sums: tuple[str, ...] = ()
    level: PayloadBound = "expected"
    auto_rank: int = 0
    known: ClassVar[dict[str, Compression]] = {}

    def __post_init__(self) -> None:
        self.known.setdefault(self.name, self)

    if not TYPE_CHECKING:  # a type checker refuses comparisons with names, as of every value (``values.Value``)

        def __eq__(self, other: object) -> bool:
            if isinstance(other, str):  # a compression equals its name, as every other value of a choice does
                return other == self.name
            return self is other or (isinstance(other, Compression) and self._fields == other._fields)

        def __hash__(self) -> int:
            return hash(self.name)

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    @cached_property
    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    def configured(self, given: Given, level: PayloadBound = "expected") -> Compression:
        """Return this compression with option values. Raises UserError for an unknown name or an illegal value."""
        made = replace(self, values=resolve(given, self.options, self.name), level=level)
        _ = made.format  # refuses values that do not go together
        return made

    def option(self, name: str) -> float:
        """Return the value of one of its options, given or default."""
        return self.option_values[name]

    @cached_property
    def option_values(self) -> Mapping[str, float]:
        """All options with the values in use."""
        return {o.name: o.default for o in self.options} | dict(self.values)

    @cached_property
    def format(self) -> Format:
        """Wire format of the compressed tensors. Others travel as fp32."""
        return self.layout(self.option_values).at(self.level)

    @property
    def codec_name(self) -> str:
        """Name of its codec in ``paceline.codecs``."""
        return self.codec or self.name

    @cached_property
    def compresses(self) -> bool:
        """True unless gradients travel unchanged."""
        return self.format != FP32

    @property
    def lossy(self) -> bool:
        """True if a gradient can be unfit for the codec (NaN, infinity, all zero). Ranks agree on that before they encode."""
        return self.rule is not None

    @property
    def can_be_placed(self) -> bool:
        """True if its codec can work on the host or in a card: neither absent nor PyTorch's own hook."""
        return self.compresses and not self.low_rank

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.name, self.values, self.level, self.rule, self.error_feedback)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Compression({self.name!r}, {dict(self.values)})" if self.values else f"Compression({self.name!r})"

    def dense(self, tensors: Sequence[NamedShape]) -> Mapping[str, str]:
        """Return the names of the tensors that this compression leaves dense, each with the reason."""
        if self.low_rank:
            rank, rate = int(self.option("rank")), self.option("min_rate")
            return {t.name: "its factors would be no smaller" for t in tensors if not low_rank_factors(t.shape, rank, rate)}
        reasons = dict(self.rule.dense(tensors)) if self.rule else {}
        block = self.format.block
        small = (t.name for t in tensors if block > 1 and not fills_blocks(prod(t.shape), block))
        return dict.fromkeys(small, f"less than a quarter of a block of {block}") | reasons


def _restored(name: str, values: Values, level: PayloadBound, rule: DenseRule | None, error_feedback: bool) -> Compression:
    """Rebuild a compression after unpickling, because its layout is a function, which cannot be pickled."""
    declared = Compression.known[name]
    same = (declared.values, declared.level, declared.rule, declared.error_feedback)
    if same == (values, level, rule, error_feedback):
        return declared
    return replace(declared, values=values, level=level, rule=rule, error_feedback=error_feedback)


def low_rank_factors(shape: tuple[int, ...], rank: int, rate: float = 2.0) -> tuple[int, int] | None:
    """Return the elements of the two factors of a tensor seen as a matrix. None: PyTorch's hook does not factor it.

    PyTorch factors no vectors, and no matrices that get less than ``rate`` times smaller (``min_compression_rate``).
    """
    if len(shape) < 2 or not prod(shape):
        return None
    rows, columns = shape[0], prod(shape[1:])
    used = min(rank, rows, columns)
    return (rows * used, columns * used) if rate * (rows + columns) * used < rows * columns else None


WARM_DENSITY = 0.25
"""Density of the first step of a warm-up (Lin et al. 2018, Deep Gradient Compression, section 3.3: a sparsity of 75 %)."""


def density_at(step: int, density: float, warmup_steps: int) -> float:
    """Return top-k's density in a step, counted from 0. It falls exponentially from ``WARM_DENSITY`` during the warm-up."""
    if step >= warmup_steps:
        return density
    return float(WARM_DENSITY * (density / WARM_DENSITY) ** (step / warmup_steps))
