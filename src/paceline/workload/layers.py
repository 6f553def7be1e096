"""What is learned, as a table: parameters, FLOPs and bytes of each layer, and the order gradients arrive in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One trained tensor. ``name`` and position are those of ``model.named_parameters()``.

    Attributes:
        layer: index into ``Workload.layers`` of the layer that owns it.
        ready: its place (0 first) in the order in which the backward pass finishes gradients.
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
class Layer:
    """The work of one module in one training step. Times follow from it by roofline.

    FLOPs and bytes grow with the batch: ``work(b) = fixed + per_sample * b`` (weights are read once a step, activations
    once a sample). FLOPs count a multiply-add as two.
    Bytes are those of fp32 tensors that its operations read and write.
    ``activation_bytes`` is what it keeps for the backward pass, per sample, at fp32.
    ``ops_*`` is the number of kernels launched.
    """

    name: str
    kind: str
    flops_forward: float
    flops_backward: float
    bytes_forward: float
    bytes_backward: float
    fixed_bytes_forward: float
    fixed_bytes_backward: float
    activation_bytes: float
    ops_forward: int
    ops_backward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which operations of the trace have a known FLOP count. ``unknown`` maps an operation's name to its calls."""

    ops: int
    known: int
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of operations with a known FLOP count, 0 to 1."""
        return self.known / self.ops if self.ops else 1.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A network as data: everything prediction needs and nothing that needs PyTorch.

    Attributes:
        layers: in forward order.
        parameters: in ``named_parameters()`` order.
        input_bytes: bytes of one sample as it enters the network.
        sample: what one sample is, e.g. ``image 3x224x224`` or ``sequence of 128 tokens``.
        source: the publication or the ``module:function`` it was traced from.
    """

    name: str
    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...]
    input_bytes: float
    sample: str
    source: str
    coverage: Coverage

    @property
    def num_parameters(self) -> int:
        """Trained elements."""
        return sum(p.size for p in self.parameters)

    @property
    def flops_forward(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum(layer.flops_forward for layer in self.layers)

    @property
    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward of one sample."""
        return sum(layer.flops_forward + layer.flops_backward for layer in self.layers)

    @property
    def activation_bytes(self) -> float:
        """fp32 bytes kept for the backward pass, per sample."""
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def ready_order(self) -> tuple[Parameter, ...]:
        """Parameters in the order in which their gradients become ready."""
        return tuple(sorted(self.parameters, key=lambda p: p.ready))

    def to_json(self) -> dict[str, Any]:
        """A plain dict; ``from_json`` gives an equal Workload back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse of ``to_json``."""
        return cls(
            **{k: data[k] for k in ("name", "input_bytes", "sample", "source")},
            layers=tuple(Layer(**layer) for layer in data["layers"]),
            parameters=tuple(Parameter(**{**p, "shape": tuple(p["shape"])}) for p in data["parameters"]),
            coverage=Coverage(**data["coverage"]),
        )

    @classmethod
    def load(cls, path: Path) -> Workload:
        """Read a table written by ``save``."""
        return cls.from_json(json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Write the table as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
