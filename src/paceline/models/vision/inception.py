"""Inception v3: 23,834,568 parameters, images of 299x299.

Source: Szegedy et al., CVPR 2016 (arXiv:1512.00567), table 1 and figures 5 to 7, with batch normalisation after every
convolution; widths as in the released model. Without the auxiliary classifier, as tf_cnn_benchmarks trains it.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from paceline.models.init import he_init

Size = int | tuple[int, int]


def conv(inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0) -> nn.Module:
    """Return a convolution, normalised and with ReLU."""
    layers = (
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001),
        nn.ReLU(inplace=True),
    )
    return nn.Sequential(*layers)


class Branches(nn.Module):
    """Several branches of one input, with their outputs concatenated over channels."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], 1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), conv(inputs, outputs, 1))


def _figure5(inputs: int, pooled: int) -> nn.Module:
    return Branches(
        conv(inputs, 64, 1),
        nn.Sequential(conv(inputs, 48, 1), conv(48, 64, 5, padding=2)),
        nn.Sequential(conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1)),
        _pooled(inputs, pooled),
    )


def _figure6(width: int) -> nn.Module:
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))

    def line(inputs: int, outputs: int, kernel_and_padding: tuple[tuple[int, int], tuple[int, int]]) -> nn.Module:
        return conv(inputs, outputs, kernel_and_padding[0], padding=kernel_and_padding[1])

    return Branches(
        conv(768, 192, 1),
        nn.Sequential(conv(768, width, 1), line(width, width, row), line(width, 192, column)),
        nn.Sequential(
            conv(768, width, 1),
            line(width, width, column),
            line(width, width, row),
            line(width, width, column),
            line(width, 192, row),
        ),
        _pooled(768, 192),
    )


def _figure7(inputs: int) -> nn.Module:
    def both() -> nn.Module:
        return Branches(conv(384, 384, (1, 3), padding=(0, 1)), conv(384, 384, (3, 1), padding=(1, 0)))

    return Branches(
        conv(inputs, 320, 1),
        nn.Sequential(conv(inputs, 384, 1), both()),
        nn.Sequential(conv(inputs, 448, 1), conv(448, 384, 3, padding=1), both()),
        _pooled(inputs, 192),
    )


def inception_v3() -> nn.Module:
    """Return Inception v3, from images (B, 3, 299, 299) to logits (B, 1000)."""
    seven = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    lines = [conv(192, 192, kernel, padding=padding) for kernel, padding in seven]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=conv(3, 32, 3, stride=2),
        conv2=conv(32, 32, 3),
        conv3=conv(32, 64, 3, padding=1),
        pool1=nn.MaxPool2d(3, stride=2),
        conv4=conv(64, 80, 1),
        conv5=conv(80, 192, 3),
        pool2=nn.MaxPool2d(3, stride=2),
        mixed_5b=_figure5(192, 32),
        mixed_5c=_figure5(256, 64),
        mixed_5d=_figure5(288, 64),
        mixed_6a=Branches(
            conv(288, 384, 3, stride=2),
            nn.Sequential(conv(288, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, stride=2)),
            nn.MaxPool2d(3, stride=2),
        ),
        mixed_6b=_figure6(128),
        mixed_6c=_figure6(160),
        mixed_6d=_figure6(160),
        mixed_6e=_figure6(192),
        mixed_7a=Branches(
            nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, stride=2)),
            nn.Sequential(conv(768, 192, 1), *lines, conv(192, 192, 3, stride=2)),
            nn.MaxPool2d(3, stride=2),
        ),
        mixed_7b=_figure7(1280),
        mixed_7c=_figure7(2048),
        pool=nn.AdaptiveAvgPool2d(1),
        drop=nn.Dropout(),
        flatten=nn.Flatten(),
        fc=nn.Linear(2048, 1000),
    )
    return he_init(nn.Sequential(layers))
