"""Convolutions that multiply only nonzero weights: a module, an operator of torch, and a plan's replacement ``sparse``.

The kernel is direct sparse convolution (Park et al., ICLR 2017, arXiv:1608.01409; ``csrc/sparse_convolution.h``), on the CPU,
in fp32. The weights stay a dense parameter with zeros: a plan is applied before weights are loaded, and fine-tuning and other
tools see an ordinary convolution. Rows of nonzeros are built at the first call after a change; an ONNX file holds only them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from paceline.array_types import F32
from paceline.errors import UserError

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]


class Rows(NamedTuple):
    """Nonzero weights by output channel.

    Attributes:
        first: begin of each channel's weights, and the end; shape (output channels + 1,), int32.
        taps: position of each in its channel's flattened weights; int32. ``values``: fp32.
    """

    first: NDArray[np.int32]
    taps: NDArray[np.int32]
    values: F32

    @classmethod
    def of(cls, weight: F32) -> Rows:
        """Build the rows of dense weights of shape (output channels, ...)."""
        flat = np.asarray(weight, np.float32).reshape(len(weight), -1)
        held = flat != 0
        first = np.concatenate([[0], np.cumsum(held.sum(1))]).astype(np.int32)
        return cls(first, np.nonzero(held)[1].astype(np.int32), flat[held])


class SparseWindow(NamedTuple):
    """Settings of a convolution; each pair is rows and columns."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def kernel_of(weight: F32, bias: F32 | None, window: SparseWindow, relu: bool = False) -> Any:
    """Return the native kernel: ``run(x, out, threads)`` for fp32 arrays of shape (batch, channels, height, width).

    Raises:
        UserError: the extension was not built.
    """
    if _native is None:
        raise UserError("the native kernels were not built", "make native")
    outs, entering, *kernel = weight.shape
    settings = [entering * window.groups, outs, window.groups, *kernel, *window.stride, *window.padding, *window.dilation]
    biases = np.zeros(outs, np.float32) if bias is None else np.ascontiguousarray(bias, np.float32)
    return _native.SparseConvolution(settings, relu, *Rows.of(weight), biases)


@torch.library.custom_op("paceline::sparse_convolution", mutates_args=())
def sparse_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolve as ``torch.nn.functional.conv2d``, which handles other devices and types.

    Args:
        x: shape (batch, channels, height, width). ``weight``: (output channels, channels / groups, rows, columns), mostly zero.
    """
    if _native is None or x.device.type != "cpu" or x.dtype != torch.float32:
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    kernel = _cached(weight, bias, SparseWindow(_pair(stride), _pair(padding), _pair(dilation), groups))
    size = [kernel.out_size(x.shape[2], 0), kernel.out_size(x.shape[3], 1)]
    out = x.new_empty([x.shape[0], len(weight), *size])
    kernel.run(x.detach().contiguous().numpy(), out.numpy(), torch.get_num_threads())
    return out


@sparse_convolution.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.settings = inputs
    ctx.biases = None if bias is None else [len(bias)]
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the dense gradient."""
    x, weight = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.settings
    wanted = [*ctx.needs_input_grad[:2], ctx.biases is not None]
    found = torch.ops.aten.convolution_backward(
        gradient, x, weight, ctx.biases, stride, padding, dilation, False, [0, 0], groups, wanted
    )
    return (*found, None, None, None, None)


sparse_convolution.register_autograd(_backward, setup_context=_save_for_backward)

_kernels: Any = WeakTensorKeyDictionary()


def _cached(weight: Tensor, bias: Tensor | None, window: SparseWindow) -> Any:
    key = (_state(weight), bias if bias is None else _state(bias), window)
    held = _kernels.get(weight)
    if held is None or held[0] != key or None in key[0]:
        biases = None if bias is None else bias.detach().numpy()
        held = key, kernel_of(weight.detach().numpy(), biases, window)
        _kernels[weight] = held
    return held[1]


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """Return a number that changes with the tensor; None if torch does not count changes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, *rest = values
    return int(first), int((rest or [first])[0])


class SparseConv2d(nn.Conv2d):
    """A convolution whose weights are mostly zero: parameters and ``state_dict`` of ``nn.Conv2d``, dense while it trains. Zero
    weights stay zero in training.

    Raises:
        UserError: padding other than zeros, or ``same`` that is not as wide on both sides.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.pads = _padding(self)

    @classmethod
    def of(cls, dense: nn.Conv2d) -> SparseConv2d:
        """Return a sparse convolution with the parameters of a dense one."""
        shape: dict[str, Any] = {"stride": dense.stride, "padding": dense.padding, "dilation": dense.dilation}
        new = cls(
            dense.in_channels,
            dense.out_channels,
            _pair(dense.kernel_size),
            **shape,
            groups=dense.groups,
            bias=dense.bias is not None,
            padding_mode=dense.padding_mode,
            device="meta",
        )
        new.weight, new.bias = dense.weight, dense.bias
        return new.train(dense.training)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve as ``nn.Conv2d``, also an input without a batch dimension."""
        if self.training:
            made: Tensor = self._conv_forward(input, self.weight * (self.weight != 0), self.bias)
            return made
        x = input if input.dim() == 4 else input[None]
        made = sparse_convolution(x, self.weight, self.bias, _pair(self.stride), self.pads, _pair(self.dilation), self.groups)
        return made if input.dim() == 4 else made[0]


def _padding(convolution: nn.Conv2d) -> tuple[int, int]:
    if convolution.padding_mode != "zeros":
        raise UserError(f"a convolution with padding_mode={convolution.padding_mode!r}", "keep this layer dense")
    if not isinstance(convolution.padding, str):
        return _pair(convolution.padding)
    if convolution.padding == "valid":
        return 0, 0
    both = [step * (size - 1) for step, size in zip(convolution.dilation, convolution.kernel_size, strict=True)]
    if any(each % 2 for each in both):
        raise UserError("a convolution with padding='same' and an even kernel", "keep this layer dense")
    return both[0] // 2, both[1] // 2


def replacement(old: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    """Return the replacement of the kind ``sparse`` of a plan.

    Args:
        settings: with ``sparsity``, that share of the weights, the smallest, becomes zero.

    Raises:
        UserError: another module than ``nn.Conv2d``, or an illegal sparsity.
    """
    if not isinstance(old, nn.Conv2d):
        raise UserError(f"a sparse convolution in the place of {type(old).__name__}", "replace nn.Conv2d alone")
    sparsity = float(settings.get("sparsity", 0))
    if not 0 <= sparsity <= 1:
        raise UserError(f"a sparsity of {sparsity:g}", "give a number from 0 to 1")
    new = SparseConv2d.of(old)
    with torch.no_grad():
        smallest = new.weight.abs().flatten().argsort()[: round(sparsity * new.weight.numel())]
        new.weight.view(-1)[smallest] = 0
    return new
