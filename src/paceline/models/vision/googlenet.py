"""GoogLeNet (Inception v1) with biases and response normalisation, 5x5 branches, without the auxiliary classifiers.

Source: Szegedy et al., CVPR 2015 (arXiv:1409.4842), table 1. The auxiliary classifiers, which are
discarded after training, are omitted; 6,998,552 parameters remain.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from paceline.models.init import he_init

# name: (1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection)
_STAGES = {
    "3": {"a": (64, 96, 128, 16, 32, 32), "b": (128, 128, 192, 32, 96, 64)},
    "4": {
        "a": (192, 96, 208, 16, 48, 64),
        "b": (160, 112, 224, 24, 64, 64),
        "c": (128, 128, 256, 24, 64, 64),
        "d": (112, 144, 288, 32, 64, 64),
        "e": (256, 160, 320, 32, 128, 128),
    },
    "5": {"a": (256, 160, 320, 32, 128, 128), "b": (384, 192, 384, 48, 128, 128)},
}


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    return nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(inplace=True)))


def _pool(kernel: int = 3) -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel, stride=2, ceil_mode=True)


class Inception(nn.Module):
    """Four parallel branches, concatenated over channels: (B, inputs, H, W) to (B, sum of the widths, H, W)."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        width1, narrow3, width3, narrow5, width5, width_pool = widths
        self.branch1 = _conv(inputs, width1, 1)
        self.branch3 = nn.Sequential(OrderedDict(reduce=_conv(inputs, narrow3, 1), conv3=_conv(narrow3, width3, 3)))
        self.branch5 = nn.Sequential(OrderedDict(reduce=_conv(inputs, narrow5, 1), conv5=_conv(narrow5, width5, 5)))
        pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.branch_pool = nn.Sequential(OrderedDict(pool=pool, project=_conv(inputs, width_pool, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], dim=1)


def googlenet() -> nn.Module:
    """Return GoogLeNet, from images (B, 3, 224, 224) to logits (B, 1000)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=_conv(3, 64, 7, stride=2),
        pool1=_pool(),
        norm1=nn.LocalResponseNorm(5),
        conv2_reduce=_conv(64, 64, 1),
        conv2=_conv(64, 192, 3),
        norm2=nn.LocalResponseNorm(5),
        pool2=_pool(),
    )
    channels = 192
    for stage, blocks in _STAGES.items():
        for letter, widths in blocks.items():
            layers[f"inception{stage}{letter}"] = Inception(channels, widths)
            width1, _, width3, _, width5, width_pool = widths
            channels = width1 + width3 + width5 + width_pool
        if stage != "5":
            layers[f"pool{stage}"] = _pool()
    layers |= OrderedDict(
        pool5=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), drop=nn.Dropout(0.4), logits=nn.Linear(channels, 1000)
    )
    return he_init(nn.Sequential(layers))
