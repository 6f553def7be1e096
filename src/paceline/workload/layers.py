"""A network as a table: parameters, FLOPs and bytes of each layer, and the order in which gradients become ready."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

from paceline.workload.builders.embedding_tables import EmbeddingTables
from paceline.workload.prepared import Prepared

OperationKind = Literal["matmul", "conv", "attention", "scan", "memory"]
Grows = Literal["m", "k", "batch", ""]
Numbers = Literal[
    "fp32",
    "autocast",
    "narrow",
    "fused",
    "autocast upcast",
    "narrow upcast",
    "fp32 compiled",
    "autocast compiled",
    "narrow compiled",
]
"""``autocast``: fp32 weights that products cast to 16 bits. ``narrow``: 16-bit weights, so that what lies between the products
has 16 bits too: normalisations and softmax save 16 bits, and products no copies. ``fused``: the same with Megatron-Core's
kernels, whose activation of a gated network saves its inputs alone (``fusions/fused_bias_swiglu.py``). The loss is fp32 in all
of them. ``upcast``: the first two with norms and softmax on fp32 copies, in kernels of PyTorch's own (transformers,
``LlamaRMSNorm`` and ``eager_attention_forward``). ``compiled``: under ``torch.compile``, whose partitioner computes chains of
element-wise kernels again instead of saving their results (PyTorch, ``functorch/_src/partitioners.py``, min-cut)."""
UPCAST: Mapping[Numbers, Numbers] = {"autocast upcast": "autocast", "narrow upcast": "narrow"}
"""Numbers without their fp32 copies."""
COMPILED: Mapping[Numbers, Numbers] = {
    "fp32 compiled": "fp32",
    "autocast compiled": "autocast",
    "narrow compiled": "narrow",
}
"""Numbers without the compiler."""

_OTHER_ATTENTION = ("GraphAttention", "AdditiveAttention", "LocationAttention")
"""Attention of graphs and of recurrent networks."""
_SEQUENCE = re.compile(r"sequence of ([0-9]+) tokens(, (one image|[0-9]+ images) .+)?")
_LOGITS = re.compile(r"(^|\.)(head\.logits|head\.decoder|lm_head|head)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One trained tensor. ``name`` and position are those of ``model.named_parameters()``.

    Attributes:
        layer: index of its layer in ``Workload.layers``.
        ready: its position, from 0, in the order in which the backward pass completes gradients.
    """

    name: str
    shape: tuple[int, ...]
    layer: int
    ready: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Kernels of one shape in one pass of a layer.

    FLOPs and bytes grow with the batch b: ``work(b) = fixed + per_sample * b``, since a step reads weights once and
    activations once per sample. A multiply-add is two FLOPs; bytes are those of fp32 tensors read and written.
    ``m, n, k, batch`` describe the matrix product of one call for one sample: ``batch`` products of (m, k) by (k, n). A
    convolution counts as its implicit product (Chetlur et al. 2014, arXiv:1410.0759, section 3). In the forward pass and
    for the gradient of the input, ``m`` is the number of written positions; for the gradient of the weight, ``k`` is the
    number of summed positions. ``batch`` is the number of groups, so ``n`` is 1 in a depthwise convolution. Attention has
    ``m`` queries, ``n`` keys, ``k`` numbers per head and ``batch`` heads.

    Attributes:
        kind: ``memory`` is any memory-bound operation; it has no shape. ``scan`` are the products of a chunked scan.
        backward: whether it runs in the backward pass.
        calls: kernel launches per step.
        flops: FLOPs per sample of all calls.
        bytes: bytes per sample at fp32 of all calls.
        fixed_bytes: bytes per step at fp32 of all calls.
        grows: the dimension that the micro batch multiplies; empty for none.
        window: positions of a convolution's kernel, 9 for 3x3.
        causal: whether a kernel of attention leaves out the scores of later keys. FLOPs count them, as publications do.
        sliding: keys that each query of attention sees at most, itself and those before it; 0: all. FLOPs count no others.
        autocast: whether it runs under 16-bit autocast alone: casts, and what kernels that stay fp32 there move beyond 16 bits.
        eager: whether it is a kernel in ordinary software alone. Tuned software computes it in the kernel before or after.
    """

    kind: OperationKind
    backward: bool
    calls: int
    flops: float = 0.0
    bytes: float = 0.0
    fixed_bytes: float = 0.0
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    batch: float = 0.0
    grows: Grows = ""
    window: int = 1
    causal: bool = False
    sliding: float = 0.0
    autocast: bool = False
    eager: bool = False

    def to_row(self) -> list[Any]:
        """Return the fields in order, whole numbers as integers, without trailing defaults."""
        row: list[Any] = [getattr(self, name) for name in _FIELDS]
        row = [int(value) if not isinstance(value, str) and value == int(value) else value for value in row]
        while len(row) > 3 and row[-1] == _DEFAULTS[len(row) - 4]:
            row.pop()
        return row

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Operation:
        """Invert ``to_row``."""
        kind, backward, calls, *rest = row
        typed = (type(default)(value) for default, value in zip(_DEFAULTS, rest, strict=False))
        return cls(kind=kind, backward=bool(backward), calls=calls, **dict(zip(_FIELDS[3:], typed, strict=False)))


FROZEN = "Frozen"
"""Kind of a layer that is a whole frozen network, such as a text encoder: its forward pass alone."""
_RECURRENT = ("LSTM", "GRU", "RNN")
_FROZEN = ("frozen_bits", "scale_bits", "packed_bits", "unpacked", "unwidened")
"""Attributes of a table about its frozen weights that are stored if they are not 0."""
_FIELDS = tuple(entry.name for entry in fields(Operation))
_DEFAULTS: tuple[Any, ...] = tuple(entry.default for entry in fields(Operation)[3:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The work of one module in one training step. The roofline model gives the times of its operations.

    ``activation_bytes`` are the bytes saved for the backward pass, per sample at fp32; ``activation_bytes_half`` those under
    16-bit autocast, where normalisations, softmax and the loss stay fp32 and each product saves its own copy of an fp32 input.
    None: not counted, and half of those at fp32 are taken. The totals of a pass are sums over its
    operations: FLOPs and bytes per sample, fixed bytes and ``ops`` (kernel launches) per step.
    """

    name: str
    kind: str
    operations: tuple[Operation, ...]
    activation_bytes: float
    activation_bytes_half: float | None = None

    def kept_bytes(self, numbers: Numbers) -> float:
        """Return the bytes of one sample that are saved for the backward pass at the network's precision."""
        if numbers in UPCAST:
            return self.kept_bytes(UPCAST[numbers]) + self.upcast_bytes(numbers)
        if numbers in COMPILED:  # of a gate's product, the result of the activation is computed again
            return self.kept_bytes(COMPILED[numbers]) / (2 if self.kind == "Mul" else 1)
        if numbers == "fp32":
            return self.activation_bytes
        half = self.activation_bytes / 2 if self.activation_bytes_half is None else self.activation_bytes_half
        if numbers == "autocast":
            return half
        if self.kind == "Linear" or self.kind.endswith("Norm"):
            return min(half, self.activation_bytes / 2)
        if numbers == "fused" and self.kind == "Mul":  # the result of the activation is computed again
            return half / 2
        if numbers == "fused" and self.kind == "Split":  # what Megatron-Core keeps of the whole result is not known
            return 0.0
        return half - 2 * self.scores

    def upcast_bytes(self, numbers: Numbers) -> float:
        """Return further bytes of one sample that norms and softmax save if they compute on fp32 copies.

        RMSNorm saves the copy and the normalised input, 6 bytes an element in place of 2 where weights have 16 bits. Softmax
        saves its fp32 result and the copy in 16 bits.
        """
        if self.kind.endswith("RMSNorm"):
            return self.activation_bytes
        return 2 * self.scores if numbers == "narrow upcast" else 0.0

    @property
    def scores(self) -> float:
        """Scores of attention that one sample writes to memory; 0 for a fused kernel and for other layers."""
        if self.kind != "Attention":
            return 0.0
        return next((o.m * o.n * o.batch for o in self.operations if o.kind == "matmul" and not o.backward), 0.0)

    def scores_bytes(self, numbers: Numbers) -> float:
        """Bytes per sample that attention saves in addition to queries, keys, values and its result: the outputs of softmax and
        dropout, and dropout's mask. 5 for each score in 16 bits (Korthikanti et al. 2022, arXiv:2205.05198, section 4.1).
        """
        kernels = sum(o.calls for o in self.operations if o.kind == "memory" and not o.backward)
        drops = kernels % 2 == 0  # scale, mask and softmax are three kernels, or one; dropout is one more
        each = {"fp32": 8.0 if drops else 4.0, "narrow": 4.0, "fused": 4.0}.get(numbers, 6.0)
        return self.scores * (each + drops)

    def divided(self, operations: tuple[Operation, ...], parts: int) -> Layer:
        """Return the layer with other operations, on one of several devices that each save one of ``parts`` equal parts."""
        half = None if self.activation_bytes_half is None else self.activation_bytes_half / parts
        kept = self.activation_bytes / parts
        return replace(self, operations=operations, activation_bytes=kept, activation_bytes_half=half)

    @property
    def turns(self) -> int:
        """Number of runs of the layer in a pass by a loop of the network, from its products. A recurrent layer is one call."""
        if self.kind in _RECURRENT:
            return 1
        return min((o.calls for o in self.operations if not o.backward and o.kind != "memory"), default=1)

    @property
    def is_logits(self) -> bool:
        """True if it is the product with the vocabulary, by its name."""
        return _LOGITS.search(self.name) is not None

    @property
    def flops_forward(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum((o.flops for o in self.operations if not o.backward), start=0.0)

    @property
    def flops_backward(self) -> float:
        """FLOPs of the backward pass of one sample."""
        return sum((o.flops for o in self.operations if o.backward), start=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of a trace: the share of operations with a known FLOP count. ``unknown`` maps names of others to calls."""

    ops: int
    known: int
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of operations with a known FLOP count, 0 to 1."""
        return self.known / self.ops if self.ops else 1.0


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerTable(Prepared):
    """Network as data, the whole input of a prediction, without PyTorch.

    Attributes:
        layers: in forward order.
        parameters: in ``named_parameters()`` order.
        input_bytes: bytes of one sample as it enters the network.
        sample: description of one sample, e.g. ``image 3x224x224`` or ``sequence of 128 tokens``.
        source: the publication or the ``module:function`` it was traced from.
        frozen: number of elements of frozen weights. ``frozen_bits``: bits of one at the mean; 0: those of the precision.
            ``scale_bits``: those of them that are scales of codes, which every device has whole. ``packed_bits``: bits of a
            code; 0 without.
        unpacked: elements of the largest frozen weight that a pass writes out in 16 bits.
        resident: elements of frozen networks that every device holds whole, such as text encoders (layers of kind ``FROZEN``).
        unwidened: trained elements whose weight, gradient and state have the width of the precision, without an fp32 copy.
        tables: embedding tables that are divided among all devices; their rows are no ``parameters``.
        routed_share: most groups of experts that one token goes to, as a share of all (``Experts.limited``).
        drops_scores: whether dropout, if the network has any, applies to the weights of attention too.
        notes: sentences about what was taken for the network and for one sample.
        shape: ``TransformerShape`` of a transformer that was built from its dimensions; else None. It costs nothing.
    """

    name: str
    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...]
    input_bytes: float
    sample: str
    source: str
    coverage: Coverage
    frozen: int = 0
    frozen_bits: float = 0.0
    scale_bits: float = 0.0
    packed_bits: int = 0
    unpacked: int = 0
    unwidened: int = 0
    tables: EmbeddingTables | None = None
    routed_share: float = 1.0
    drops_scores: bool = True
    resident: int = 0
    notes: tuple[str, ...] = ()
    shape: Any = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the results derived from them: the results may hold functions."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def num_parameters(self) -> int:
        """Number of trained elements."""
        return sum(p.size for p in self.parameters)

    @property
    def code_bits(self) -> float:
        """Bits of a frozen element at the mean without scales, as a sharding divides and gathers it; 0 without codes."""
        return self.frozen_bits - self.scale_bits

    @cached_property
    def flops_forward(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum(layer.flops_forward for layer in self.layers)

    @cached_property
    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward of one sample."""
        return sum(layer.flops_forward + layer.flops_backward for layer in self.layers)

    @cached_property
    def tokens(self) -> int:
        """Tokens of a sample that is one sequence, else 0."""
        match = _SEQUENCE.fullmatch(self.sample)
        return int(match[1]) if match else 0

    @cached_property
    def attends(self) -> bool:
        """True if the network has attention, fused or with its scores in memory."""
        return self.fuses_attention or any(layer.kind == "Attention" for layer in self.layers)

    @cached_property
    def on_sequences(self) -> bool:
        """True for networks of token sequences, scans or attention blocks, with windows or without."""
        if self.attends or self.tokens:
            return True
        kinds = {layer.kind for layer in self.layers}
        return "Scan" in kinds or any(kind.endswith("Attention") and kind not in _OTHER_ATTENTION for kind in kinds)

    @cached_property
    def fuses_attention(self) -> bool:
        """True if any of its attention is a fused kernel."""
        return any(o.kind == "attention" for layer in self.layers for o in layer.operations)

    @cached_property
    def activation_bytes(self) -> float:
        """fp32 bytes kept for the backward pass, per sample."""
        return sum(layer.activation_bytes for layer in self.layers)

    def kept_bytes(self, numbers: Numbers) -> float:
        """Return the bytes kept for the backward pass per sample at the network's precision."""
        return sum(layer.kept_bytes(numbers) for layer in self.layers)

    @cached_property
    def counts_half(self) -> bool:
        """True if activations under autocast were counted, instead of assumed to be half of those at fp32."""
        return all(layer.activation_bytes_half is not None for layer in self.layers)

    @cached_property
    def ready_order(self) -> tuple[Parameter, ...]:
        """The parameters in the order in which their gradients become ready."""
        return tuple(sorted(self.parameters, key=lambda p: p.ready))

    def __repr__(self) -> str:
        """Return one line, because the table has thousands of numbers."""
        return (
            f"{type(self).__name__}({self.name!r}, {len(self.layers)} layers, {self.num_parameters:,} parameters, "
            f"{self.flops_per_sample:.3g} FLOPs a sample, {self.sample})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict with operations and parameters as rows; inverted by ``from_json``."""
        return {
            "name": self.name,
            "layers": [[x.name, x.kind, _kept_row(x), *(o.to_row() for o in x.operations)] for x in self.layers],
            "parameters": [[p.name, list(p.shape), p.layer, p.ready] for p in self.parameters],
            **{key: getattr(self, key) for key in ("input_bytes", "sample", "source")},
            "coverage": asdict(self.coverage),
            **({"frozen": self.frozen} if self.frozen else {}),
            **{name: getattr(self, name) for name in _FROZEN if getattr(self, name)},
            **({"tables": asdict(self.tables)} if self.tables else {}),
            **({"routed_share": self.routed_share} if self.routed_share != 1 else {}),
            **({"resident": self.resident} if self.resident else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Invert ``to_json``."""
        return cls(
            **{k: data[k] for k in ("name", "input_bytes", "sample", "source")},
            layers=tuple(
                Layer(name=name, kind=kind, operations=tuple(map(Operation.from_row, rows)), **_kept_fields(kept))
                for name, kind, kept, *rows in data["layers"]
            ),
            parameters=tuple(
                Parameter(name=name, shape=tuple(shape), layer=layer, ready=ready)
                for name, shape, layer, ready in data["parameters"]
            ),
            coverage=Coverage(**data["coverage"]),
            frozen=data.get("frozen", 0),
            **{name: data[name] for name in _FROZEN if name in data},
            tables=EmbeddingTables(**data["tables"]) if "tables" in data else None,
            routed_share=data.get("routed_share", 1.0),
            resident=data.get("resident", 0),
            notes=tuple(data.get("notes", ())),
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a table written by ``save``."""
        return cls.from_json(json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Write the table as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")


def _kept_row(layer: Layer) -> float | list[float]:
    """Return bytes at fp32 and under autocast; only the first if the second was not counted, as in older tables."""
    half = layer.activation_bytes_half
    return layer.activation_bytes if half is None else [layer.activation_bytes, half]


def _kept_fields(row: float | Sequence[float]) -> dict[str, float]:
    """Invert ``_kept_row``."""
    sizes = row if isinstance(row, Sequence) else (row,)
    return dict(zip(("activation_bytes", "activation_bytes_half"), sizes, strict=False))
