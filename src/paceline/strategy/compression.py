"""Compressions, described: bytes on the wire, which tensors stay dense, what the codec costs. The work itself is elsewhere.

Training sends exactly the bytes that these descriptions say; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from math import prod
from typing import Protocol

from paceline.errors import UserError, check_count, check_flag, shown
from paceline.strategy import formats
from paceline.strategy.codec_rates import CPU_RATES, CodecRate
from paceline.strategy.compression_options import Given, Option, Values, resolve
from paceline.strategy.formats import BF16, FP32, TERNARY, Format, PayloadBound


class NamedShape(Protocol):
    """Anything with the name and the shape of a tensor, such as ``workload.Parameter``."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRule:
    """Which tensors are sent dense although a compression is on.

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
        layout: the format for option values; see ``format``.
        exchanges: that can carry it, the default first.
        rule: which tensors stay dense; None where all are treated alike.
        options: the parameters it takes; ``values``: those that were given, see ``configured``.
        unbiased: the expected decoded gradient is the gradient.
        shares_scale: one fp32 maximum per compressed tensor is all-reduced before encoding.
        error_feedback: what a step's encoding lost is added to the next gradient: 4 bytes a parameter.
        low_rank: two factors of each matrix are all-reduced in place of it.
        in_place: on a CPU messages are written from the gradients where they lie, and sums back; others are copied into one
            buffer first, and back.
        encode_bytes, decode_bytes: memory traffic of the codec per element, for its roofline time.
        level: which end of a data-dependent length ``format`` describes.
    """

    name: str
    title: str
    layout: Callable[[Mapping[str, float]], Format]
    exchanges: tuple[str, ...]
    rule: DenseRule | None
    unbiased: bool
    encode_bytes: float
    decode_bytes: float
    citation: str
    options: tuple[Option, ...] = ()
    values: Values = ()
    shares_scale: bool = False
    error_feedback: bool = False
    low_rank: bool = False
    in_place: bool = False
    level: PayloadBound = "expected"

    def configured(self, given: Given, level: PayloadBound = "expected") -> Compression:
        """This compression with option values. Raises UserError for an unknown name or an illegal value."""
        return replace(self, values=resolve(given, self.options, self.name), level=level)

    def option(self, name: str) -> float:
        """The value of one of its options: the given one, else the default."""
        return self.option_values[name]

    @cached_property
    def option_values(self) -> Mapping[str, float]:
        """Every option with the value in use."""
        return {o.name: o.default for o in self.options} | dict(self.values)

    @cached_property
    def format(self) -> Format:
        """Format of the tensors that are compressed; the others travel as fp32."""
        return self.layout(self.option_values).at(self.level)

    @property
    def cpu_rate(self) -> CodecRate:
        """Bytes/s of fp32 on one core of a CPU."""
        return CPU_RATES[self.name]

    @property
    def lossy(self) -> bool:
        """Whether a gradient can be unfit for the codec (NaN, infinity, all zero). Ranks agree on that before they encode."""
        return self.rule is not None

    def dense(self, tensors: Sequence[NamedShape]) -> Mapping[str, str]:
        """Names of the tensors that this compression leaves dense, with the reason."""
        if self.low_rank:
            rank, rate = int(self.option("rank")), self.option("min_rate")
            return {t.name: "its factors would be no smaller" for t in tensors if not low_rank_factors(t.shape, rank, rate)}
        return self.rule.dense(tensors) if self.rule else {}


def low_rank_factors(shape: tuple[int, ...], rank: int, rate: float = 2.0) -> tuple[int, int] | None:
    """Elements of the two factors of a tensor seen as a matrix; None where PyTorch's hook leaves it as it is.

    That is a vector, or a matrix that its factors would not make ``rate`` times as small (``min_compression_rate``).
    """
    if len(shape) < 2 or not prod(shape):
        return None
    rows, columns = shape[0], prod(shape[1:])
    used = min(rank, rows, columns)
    return (rows * used, columns * used) if rate * (rows + columns) * used < rows * columns else None


CODED = ("sharded", "parameter_server", "ring", "allgather", "hierarchical")
"""Exchanges that can carry encoded messages; the engine's all-reduce can only add numbers."""
_ALL = ("allreduce", *CODED)
_RATIO = Option(
    name="ratio", default=0, least=0, most=16, text="measured compression ratio, for prediction; 0 takes the published range"
)
_EVERY_LAYER = DenseRule(last_layer=False)
"""Rule of codecs with a small error in each block, or with error feedback: they need no dense last layer."""
_BLOCK = Option(
    name="block", default=1024, least=64, most=65536, whole=True, power=True, text="elements that share a scale; a power of two"
)


WARM_DENSITY = 0.25
"""Density of the first step of a warm-up (Lin et al. 2018, Deep Gradient Compression, section 3.3: a sparsity of 75 %)."""


def density_at(step: int, density: float, warmup_steps: int) -> float:
    """Density of top-k in a step, from 0: exponentially from ``WARM_DENSITY`` down to ``density`` in the warm-up."""
    if step >= warmup_steps:
        return density
    return float(WARM_DENSITY * (density / WARM_DENSITY) ** (step / warmup_steps))


def _bound(k: int, largest_k: int, text: str) -> Option:
    return Option(name="bound", default=2.0**-k, least=2.0**-largest_k, most=0.5, power=True, text=text)


COMPRESSIONS: Mapping[str, Compression] = {
    c.name: c
    for c in (
        Compression(
            name="dense",
            title="no compression",
            layout=lambda _: FP32,
            exchanges=_ALL,
            rule=None,
            unbiased=True,
            encode_bytes=8,
            decode_bytes=8,
            citation="",
        ),
        Compression(
            name="bf16",
            title="gradients rounded to bfloat16",
            layout=lambda _: BF16,
            exchanges=_ALL,
            rule=None,
            unbiased=False,
            encode_bytes=6,
            decode_bytes=6,
            citation="Kalamkar et al. 2019, arXiv 1905.12322",
        ),
        Compression(
            name="terngrad",
            title="TernGrad: stochastic ternary gradients",
            layout=lambda _: TERNARY,
            exchanges=CODED,
            rule=DenseRule(),
            unbiased=True,
            shares_scale=True,
            in_place=True,
            # Two reads (moments and extremes, then the draw) and two bits out; the integer sum in and fp32 out.
            encode_bytes=8.25,
            decode_bytes=4.5,
            citation="Wen et al. 2017, TernGrad, NIPS, arXiv 1705.07878",
        ),
        Compression(
            name="inceptionn",
            title="INCEPTIONN: 0, 8, 16 or 32 bits by magnitude",
            layout=formats.inceptionn,
            exchanges=("ring", "sharded", "parameter_server", "allgather", "hierarchical"),
            rule=DenseRule(),
            unbiased=False,
            options=(_bound(10, 15, "magnitudes below it become 0"), _RATIO),
            encode_bytes=4.5,
            decode_bytes=4.5,
            citation="Li et al. 2018, INCEPTIONN, MICRO, doi 10.1109/MICRO.2018.00023",
        ),
        Compression(
            name="inceptionn-scaled",
            title="INCEPTIONN with a scale a block and error feedback",
            layout=formats.inceptionn_scaled,
            exchanges=CODED,
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(_bound(6, 14, "largest error over a block's largest magnitude"), _RATIO),
            error_feedback=True,
            # The maximum of the block, then the block; the residual is read and written beside.
            encode_bytes=16.5,
            decode_bytes=4.5,
            citation="Li et al. 2018, INCEPTIONN, MICRO, doi 10.1109/MICRO.2018.00023; the scale is ours",
        ),
        Compression(
            name="int8",
            title="stochastic 8-bit integers with a scale a block",
            layout=partial(formats.whole_numbers, "int8", 8),
            exchanges=CODED,
            rule=_EVERY_LAYER,
            unbiased=True,
            options=(_BLOCK,),
            in_place=True,
            encode_bytes=9,
            decode_bytes=5,
            citation="Alistarh et al. 2017, QSGD, NIPS, arXiv 1610.02132",
        ),
        Compression(
            name="int4",
            title="stochastic 4-bit integers with a scale a block",
            layout=partial(formats.whole_numbers, "int4", 4),
            exchanges=CODED,
            rule=DenseRule(),
            unbiased=True,
            options=(_BLOCK,),
            in_place=True,
            encode_bytes=8.5,
            decode_bytes=4.5,
            citation="Alistarh et al. 2017, QSGD, NIPS, arXiv 1610.02132",
        ),
        Compression(
            name="sign",
            title="signs with a scale a block and error feedback",
            layout=formats.sign,
            exchanges=CODED,
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(_BLOCK,),
            error_feedback=True,
            encode_bytes=16.1,
            decode_bytes=4.1,
            citation="Karimireddy et al. 2019, Error feedback fixes SignSGD, ICML, arXiv 1901.09847",
        ),
        Compression(
            name="topk",
            title="the largest elements, with error feedback",
            layout=formats.topk,
            exchanges=("allgather", "sharded", "parameter_server", "ring", "hierarchical"),
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(
                Option(name="density", default=0.01, least=1e-4, most=1, text="share of the elements that is sent"),
                Option(name="value_bits", default=32, least=16, most=32, whole=True, power=True, text="fp32 or bfloat16"),
                Option(
                    name="momentum",
                    default=0,
                    least=0,
                    most=0.9999,
                    text="corrected here; the optimizer has its own for dense tensors only",
                ),
                Option(name="warmup_steps", default=0, least=0, most=1e9, whole=True, text=f"from {WARM_DENSITY:g} to density"),
            ),
            error_feedback=True,
            encode_bytes=16,
            decode_bytes=4,
            citation="Lin et al. 2018, Deep Gradient Compression, ICLR, arXiv 1712.01887",
        ),
        Compression(
            name="powersgd",
            title="PowerSGD: factors of low rank, PyTorch's own hook",
            layout=lambda _: Format("low-rank", 32),
            exchanges=("allreduce",),
            rule=None,
            unbiased=False,
            options=(
                Option(name="rank", default=2, least=1, most=1024, whole=True, text="columns of the factors"),
                Option(name="start_iter", default=2, least=2, most=1e9, whole=True, text="the first compressed step, from 0"),
                Option(name="min_rate", default=2, least=0.1, most=1e6, text="least ratio of a matrix to its factors"),
            ),
            error_feedback=True,
            low_rank=True,
            # P = M Q, Q = M' P, and P Q' with the residual: the matrix is read three times and written twice.
            encode_bytes=12,
            decode_bytes=8,
            citation="Vogels et al. 2019, PowerSGD, NeurIPS, arXiv 1905.13727",
        ),
    )
}
