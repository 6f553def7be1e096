"""ResNet-50: 25,557,032 parameters.

Source: He et al., CVPR 2016 (arXiv:1512.03385), table 1, in the form called v1.5: the stride of a stage's first block
is on its 3x3 convolution, as in Goyal et al. 2017 (arXiv:1706.02677), not on its first 1x1. That costs 4.09 instead of
3.8 G multiply-adds. The last normalisation of each block starts at zero, as there (section 5.1).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from paceline.models.init import he_init

_BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut: (B, inputs, H, W) to (B, 4 width, H / stride, W / stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(OrderedDict(conv=conv, bn=nn.BatchNorm2d(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += shortcut
        result: Tensor = self.relu(x)
        return result


def resnet50() -> nn.Module:
    """Images (B, 3, 224, 224) to logits (B, 1000)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(3, stride=2, padding=1),
    )
    channels = 64
    for stage, blocks in enumerate(_BLOCKS, 1):
        width = 32 * 2**stage
        for i in range(blocks):
            layers[f"layer{stage}_{i}"] = Bottleneck(channels, width, stride=2 if i == 0 and stage > 1 else 1)
            channels = 4 * width
    layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, 1000))
    model = he_init(nn.Sequential(layers))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Bottleneck):
                module.bn3.weight.zero_()
    return model
