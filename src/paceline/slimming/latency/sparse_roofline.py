"""Choice of convolutions that gain from zeros, and the sparsity from which they do: a roofline of two figures per layer.

A layer with a share ``x`` of zeros takes ``max(a (1 - x) t_dense, bytes / bandwidth)`` (after Park et al., ICLR 2017): ``a`` is
the slowdown per weight of the sparse kernel over the dense one. It gains from ``1 - 1 / a`` on, up to the bound of the
bandwidth. ``t_dense`` is ONNX Runtime's time, ``a`` is measured with half of the weights, and the time to move the images with
no weight. In between, short rows of weights cost more than the roofline predicts, so a third figure is measured at nine tenths.
Layers that cannot gain should not be pruned: then others can be pruned more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.array_types import F32
from paceline.errors import UserError
from paceline.slimming.export.onnx_export import open_session
from paceline.slimming.methods.sparse_convolution import SparseConv2d, SparseWindow, kernel_of
from paceline.slimming.structures.eval_mode import eval_mode

HOLDS = 0.9
"""Sparsity at which a layer must gain. Trained networks keep accuracy with 81 to 98 % in 3x3 layers (SkimCaffe's ResNet-50)."""
LEAST_GAIN = 1.2
MEASURED_AT = 0.5
TURNS_S = 0.3
LEAST_TURNS = 5


@dataclass(frozen=True)
class ConvShape:
    """Shapes of a convolution and its input images.

    Attributes:
        weight: shape of its weights. ``image``: (batch, channels, height, width).
    """

    weight: tuple[int, ...]
    window: SparseWindow
    image: tuple[int, ...]

    @classmethod
    def of(cls, convolution: nn.Conv2d, image: tuple[int, ...]) -> ConvShape:
        """Return the shape after a check. Raises UserError if the kernel does not support it."""
        sparse = SparseConv2d.of(convolution)
        rows, columns = sparse.stride
        window = SparseWindow((rows, columns), sparse.pads, (sparse.dilation[0], sparse.dilation[1]), sparse.groups)
        return cls(tuple(convolution.weight.shape), window, image)

    @property
    def out(self) -> tuple[int, ...]:
        """Shape of the output."""
        each = zip(self.image[2:], self.window.padding, self.window.dilation, self.weight[2:], self.window.stride, strict=True)
        sizes = ((size + 2 * pad - step * (kernel - 1) - 1) // stride + 1 for size, pad, step, kernel, stride in each)
        return (self.image[0], self.weight[0], *sizes)


@dataclass(frozen=True)
class SparseRoof:
    """Roofline of a layer.

    Attributes:
        dense_s: ONNX Runtime's. ``slowdown``: ``a``. ``floor_s``: seconds of moving ``moved`` bytes.
        holds_s: measured at a sparsity of ``HOLDS``; 0 if only the roofline is known.
    """

    dense_s: float
    slowdown: float
    floor_s: float
    moved: int
    holds_s: float = 0.0

    def seconds(self, sparsity: float) -> float:
        """Return the seconds at a sparsity: the roofline, or a straight line between measured sparsities."""
        if not self.holds_s or sparsity <= MEASURED_AT:
            return max(self.slowdown * (1 - sparsity) * self.dense_s, self.floor_s)
        half_s = self.slowdown * (1 - MEASURED_AT) * self.dense_s
        return float(np.interp(sparsity, [MEASURED_AT, HOLDS, 1], [half_s, self.holds_s, self.floor_s]))

    @property
    def gains_from(self) -> float:
        """Sparsity from which on the layer is faster than dense; 1 if it never is."""
        return max(1 - 1 / self.slowdown, 0.0) if self.floor_s < self.dense_s else 1.0

    @property
    def saturates_at(self) -> float:
        """Sparsity from which on more zeros bring no gain."""
        return max(1 - self.floor_s / (self.slowdown * self.dense_s), 0.0)

    @property
    def bandwidth(self) -> float:
        """Bandwidth in bytes a second."""
        return self.moved / self.floor_s


@dataclass(frozen=True)
class Advice:
    """Decision for one layer.

    Attributes:
        roof: None if not measured. ``refused``: reason why the layer stays dense, or empty.
    """

    roof: SparseRoof | None
    refused: str = ""


def advice(model: nn.Module, inputs: tuple[Any, ...], threads: int = 1, holds: float = HOLDS) -> dict[str, Advice]:
    """Decide for every convolution of a model, in the order of its modules. It takes 0.3 s a layer; equal shapes once.

    Args:
        inputs: tensors of the shapes that the network will run on.
        holds: the sparsity that a layer is assumed to hold without loss of accuracy.

    Raises:
        UserError: ONNX Runtime is not installed.
    """
    images = _images(model, inputs)
    roofs: dict[ConvShape, Advice] = {}
    found = {}
    for name, module in model.named_modules():
        if name in images and isinstance(module, nn.Conv2d):
            if not module.weight.requires_grad:
                found[name] = Advice(None, "frozen")
                continue
            try:
                shape = ConvShape.of(module, images[name])
            except UserError as error:
                found[name] = Advice(None, str(error))
                continue
            if shape not in roofs:
                roofs[shape] = advised(shape, threads, holds)
            found[name] = roofs[shape]
    return found


def advised(shape: ConvShape, threads: int = 1, holds: float = HOLDS) -> Advice:
    """Decide for one layer."""
    if shape.weight[1] == 1:
        return Advice(None, "each output has one channel to read: too few weights to leave out")
    roof = measured(shape, threads)
    return Advice(roof, refusal(shape, roof, holds))


def refusal(shape: ConvShape, roof: SparseRoof, holds: float = HOLDS) -> str:
    """Return the reason why a layer cannot gain, or an empty text."""
    gain = roof.dense_s / roof.seconds(holds)
    if gain >= LEAST_GAIN:
        return ""
    dense_ms, floor_ms = roof.dense_s * 1e3, roof.floor_s * 1e3
    bound = roof.floor_s * LEAST_GAIN > roof.dense_s
    if bound and shape.weight[1] <= 4:
        why = f"with {shape.weight[1]} channels of input there is little to multiply"
    elif prod(shape.weight[2:]) == 1:
        why = "a 1x1 convolution reads each value for one weight of a channel"
    else:
        why = "the layer is small"
    if bound:
        return f"{why}: moving its images alone takes {floor_ms:.3g} ms, dense {dense_ms:.3g} ms"
    return f"{why}: a weight takes {roof.slowdown:.1f} times as long as dense, so {holds:.0%} zeros gain {gain:.2f}x"


def measured(shape: ConvShape, threads: int = 1) -> SparseRoof:
    """Measure the roofline here: dense, half of the weights, a tenth and none, in alternation. The fastest turn counts."""
    random = np.random.default_rng(0)
    image = random.standard_normal(shape.image, np.float32)
    weight, order = random.standard_normal(shape.weight, np.float32), random.permutation(prod(shape.weight))
    bias, out = np.zeros(shape.weight[0], np.float32), np.empty(shape.out, np.float32)
    session = open_session(dense_model(shape), threads)

    def sparse(sparsity: float) -> Callable[[], Any]:
        held = weight.copy()
        held.reshape(-1)[order[: round(sparsity * held.size)]] = 0
        kernel = kernel_of(held, bias, shape.window)
        return lambda: kernel.run(image, out, threads)

    runs = [lambda: session.run(None, {"x": image}), sparse(MEASURED_AT), sparse(HOLDS), sparse(1.0)]
    dense_s, half_s, holds_s, floor_s = alternated(runs)
    return SparseRoof(dense_s, half_s / ((1 - MEASURED_AT) * dense_s), floor_s, 4 * (image.size + out.size), holds_s)


def alternated(runs: list[Callable[[], Any]], seconds: float = TURNS_S) -> list[float]:
    """Return the seconds of each call, the least of its turns. A turn finds the caches as others left them, as in a network."""
    for run in runs:
        run()
    least, start, turns = [float("inf")] * len(runs), time.perf_counter(), 0
    while turns < LEAST_TURNS or time.perf_counter() - start < seconds:
        turns += 1
        for place, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            least[place] = min(least[place], time.perf_counter() - begin)
    return least


def dense_model(shape: ConvShape, weight: F32 | None = None) -> Any:
    """Return a model of one ONNX node; its weights are random by default."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weight = random.standard_normal(shape.weight, np.float32) if weight is None else weight
    window = shape.window
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(len(weight), np.float32), "b")]
    pads = [*window.padding, *window.padding]
    settings: dict[str, Any] = {"strides": window.stride, "pads": pads, "dilations": window.dilation, "group": window.groups}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **settings)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape.image)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "conv", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _images(model: nn.Module, inputs: tuple[Any, ...]) -> Mapping[str, tuple[int, ...]]:
    """Return the input shape of each convolution, by its name."""
    found: dict[str, tuple[int, ...]] = {}

    def see(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            image = tuple(given[0].shape)
            found[name] = image if len(image) == 4 else (1, *image)

        return hook

    hooks = [each.register_forward_pre_hook(see(name)) for name, each in model.named_modules() if isinstance(each, nn.Conv2d)]
    try:
        with torch.no_grad(), eval_mode(model):
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found
