"""Compact network of Conv-M blocks, after Wu et al., CVPR 2017 (arXiv:1703.04071).

Public about the original: a block has three branches on the same input, a plain convolution, a dilated 3x3 convolution that
covers 5x5, and a deconvolution, whose outputs are concatenated; the network has 4.1 M parameters, 6.7 % of AlexNet's and 59 %
of GoogLeNet's. Widths, depth and order of the layers are not public. These are ours:

- A 1x1 convolution comes first in a block, as in SqueezeNet's fire module (Iandola et al. 2016, arXiv:1602.07360).
- The deconvolution has stride 2, and of each 2x2 of what it makes the largest stays. One of stride 1 would be a plain
  convolution with a mirrored kernel.
- A batch normalisation and a ReLU follow the 1x1 convolution, and the concatenation.
- All branches are equally wide. Widths grow by stage; a pooling stands between stages; the logits come from a global average.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from paceline.models.init import he_init

Stages = Sequence[Sequence[tuple[int, int]]]
"""By stage, of each block: outputs of its 1x1 convolution, and of each of its three branches."""
Block = Callable[[int, int, int], nn.Module]
"""Numbers of inputs, of outputs of the 1x1 convolution, and a third of the outputs."""
_SMALL: Stages = (((12, 16),), ((16, 24),), ((24, 32),))
_IMAGENET: Stages = (
    ((32, 48), (32, 48)),
    ((48, 80), (48, 80)),
    ((64, 112), (64, 112), (96, 144), (96, 144)),
    ((128, 240), (128, 240)),
)
FORMS: Mapping[str, tuple[int, Stages]] = MappingProxyType({"small": (16, _SMALL), "deep": (64, _IMAGENET)})
"""Widths of the stem and of the stages: for small images, and for those of 64 pixels and more."""


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs), relu=nn.ReLU(inplace=True)))


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(conv=_normed(inputs, outputs, 7, stride=2), pool=nn.MaxPool2d(2)))


class ConvM(nn.Module):
    """Block of three branches on the same input, concatenated: (B, inputs, H, W) to (B, 3 branch, H, W).

    Args:
        squeeze: outputs of the 1x1 convolution before the branches. ``branch``: outputs of each branch.
    """

    def __init__(self, inputs: int, squeeze: int, branch: int) -> None:
        super().__init__()
        self.squeeze = _normed(inputs, squeeze, 1)
        self.plain = nn.Conv2d(squeeze, branch, 3, padding=1, bias=False)
        self.dilated = nn.Conv2d(squeeze, branch, 3, padding=2, dilation=2, bias=False)
        self.deconv = nn.ConvTranspose2d(squeeze, branch, 3, stride=2, padding=1, output_padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm, self.relu = nn.BatchNorm2d(3 * branch), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        joined: Tensor = self.relu(self.norm(torch.cat([self.plain(x), self.dilated(x), self.pool(self.deconv(x))], 1)))
        return joined


def compact(
    channels: int = 1, classes: int = 10, *, stem: nn.Module | None = None, stages: Stages = _SMALL, block: Block = ConvM
) -> nn.Sequential:
    """Return a compact network, from images (B, channels, H, W) of at least 16x16 to logits (B, classes).

    Args:
        stem: first layers; by default a 3x3 convolution of stride 2 with 16 outputs. The last convolution sets the width.
        block: other blocks of the same widths, to compare with.
    """
    first = stem or _normed(channels, 16, 3, stride=2)
    width = [module.out_channels for module in first.modules() if isinstance(module, nn.Conv2d)][-1]
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=first)
    for number, blocks in enumerate(stages, 1):
        for place, (squeeze, branch) in enumerate(blocks):
            layers[f"block{number}{chr(ord('a') + place)}"] = block(width, squeeze, branch)
            width = 3 * branch
        if number < len(stages):
            layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), logits=nn.Linear(width, classes))
    return he_init(nn.Sequential(layers))


def conv_m_of(form: str, channels: int, classes: int, stem: int, stages: Stages) -> nn.Sequential:
    """Return a network of one of ``FORMS`` with other widths.

    Args:
        stem: outputs of the first convolution, of 3x3 where the form is small, else of 7x7 and pooled.
    """
    first = _normed(channels, stem, 3, stride=2) if form == "small" else _pooled(channels, stem)
    return compact(channels, classes, stem=first, stages=stages)


def narrow(width: float, channels: int = 1, classes: int = 10, block: Block = ConvM) -> nn.Sequential:
    """Return the network for small images with a share of its widths, such as 0.25, but at least two of each."""

    def of(outputs: int) -> int:
        return max(2, round(width * outputs))

    stages = tuple(tuple((of(squeeze), of(branch)) for squeeze, branch in blocks) for blocks in _SMALL)
    return compact(channels, classes, stem=_normed(channels, of(16), 3, stride=2), stages=stages, block=block)


def conv_m_small() -> nn.Module:
    """Return the network for small images, from (B, 1, 28, 28) to logits (B, 10): 40,658 parameters."""
    return compact()


def conv_m() -> nn.Module:
    """Return the network from images (B, 3, 224, 224) to logits (B, 1000): 4.1 M parameters, as published."""
    return conv_m_of("deep", 3, 1000, *FORMS["deep"])
