"""Tensors of one parameter group that take the same path, which both passes process together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from paceline.training.optimizers.norms import local

_CHUNK = 1 << 24  # elements that the foreach path works on at a time: bounds its temporaries (64 MB of fp32 each)
_BITS = {8: torch.int64, 4: torch.int32}


def listed(tensors: object) -> list[Tensor]:
    """Return the result of a foreach function as a list."""
    return list(cast(Iterable[Tensor], tensors))


def dense(weight: Tensor, words: list[Tensor]) -> bool:
    """Return whether weight and fp32 state are contiguous and in one order, so that one loop over memory serves them."""
    if not weight.is_contiguous() and not (weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)):
        return False
    order = weight.stride()
    return not [word for word in words if word.stride() != order or word.dtype != torch.float32]


def fitted(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient in the weight's precision and order: itself or a copy."""
    if gradient.dtype == weight.dtype and gradient.stride() == weight.stride() and not gradient.is_neg():
        return gradient
    return torch.empty_like(weight).copy_(gradient)


def scalar_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of norms, ratios and corrections for weights: fp64 on CPUs, where it is as fast."""
    return torch.float64 if weight.device.type == "cpu" or weight.dtype == torch.float64 else torch.float32


@dataclass(slots=True)
class Bundle:
    """Parallel lists with one entry per parameter.

    Attributes:
        group: the parameter group with its options.
        excluded: True if neither decay nor ratio applies.
        kernels: the module whose kernels serve them; None: torch's foreach functions do.
        parameters: the user's, DTensors and 16-bit ones included.
        weights: tensors for the computation: this rank's part; the fp32 master of 16-bit parameters.
        gradients: this rank's part, in the parameter's precision.
        words: for each of the state's tensors the list of this rank's parts.
        steps: counters of steps done, numbers on the device.
        scale: first factor of gradients, a number or a tensor of one.
        corrections: values that the optimizer needs in both passes.
        tables: tables of the kernels.
    """

    group: dict[str, Any]
    excluded: bool
    kernels: Any
    device: torch.device
    names: list[str] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    words: list[list[Tensor]] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)
    scale: float | Tensor = 1.0
    corrections: Any = None
    tables: Any = None

    def add(
        self, name: str, parameter: Tensor, weight: Tensor, gradient: Tensor, words: list[Tensor], step: Tensor | None
    ) -> None:
        """Add a parameter with its weight, gradient and state."""
        if not self.words:
            self.words = [[] for _ in words]
        self.names.append(name)
        self.parameters.append(parameter)
        self.weights.append(weight)
        self.gradients.append(gradient)
        for kept, word in zip(self.words, words, strict=True):
            kept.append(word)
        if step is not None:
            self.steps.append(step)

    @property
    def decay(self) -> float:
        """Weight decay of these tensors."""
        return 0.0 if self.excluded else float(self.group["weight_decay"])

    def chunks(self) -> Iterator[slice]:
        """Return slices of the lists, of up to 16M elements or one tensor each."""
        first = count = 0
        for i, weight in enumerate(self.weights):
            if i > first and count + weight.numel() > _CHUNK:
                yield slice(first, i)
                first, count = i, 0
            count += weight.numel()
        yield slice(first, len(self.weights))

    def scaled(self, part: slice, finite: Tensor | None = None) -> list[Tensor]:
        """Return the gradients of a slice in the weights' precision, times ``scale``; zero if ``finite`` is false.

        They may be the gradients themselves, so do not write to them.
        """
        dtype, gradients = self.weights[0].dtype, self.gradients[part]
        if gradients[0].dtype != dtype:
            gradients = [g.to(dtype) for g in gradients]
        if isinstance(self.scale, Tensor):
            gradients = listed(torch._foreach_mul(gradients, self.scale.to(dtype)))
        elif self.scale != 1:
            gradients = listed(torch._foreach_mul(gradients, self.scale))
        if finite is not None:  # by their bits, since NaN * 0 is NaN
            bits = _BITS[dtype.itemsize]
            whole = torch._foreach_mul([g.view(bits) for g in gradients], finite.to(bits))
            gradients = [g.view(dtype) for g in whole]
        return gradients

    def publish(self, part: slice) -> None:
        """Copy the masters of 16-bit parameters into them."""
        if self.parameters[0].dtype != self.weights[0].dtype:
            torch._foreach_copy_([local(p) for p in self.parameters[part]], self.weights[part])
