"""Residual networks: ResNet-18, -34, -50, -101 and -152 for ImageNet, ResNet-18 for CIFAR, and the bodies of detectors.

Source: He et al., CVPR 2016 (arXiv:1512.03385), table 1, in the form called v1.5: the stride of a stage's first block
is on its 3x3 convolution, as in Goyal et al. 2017 (arXiv:1706.02677), not on its first 1x1. It costs 4.09 instead of
3.8 G multiply-adds in ResNet-50. The last normalisation of each block starts at zero, as there (section 5.1).
ResNeXt: Xie et al., CVPR 2017 (arXiv:1611.05431), table 1. The form for CIFAR is that of kuangliu/pytorch-cifar: the widths
of ResNet-18 after one 3x3 convolution and no pooling, over images of 32x32, 11,173,962 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from paceline.models.init import he_init

Norm = Callable[[int], nn.Module]
SMALL, MIDDLE, LARGE, LARGEST = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)


class FrozenNorm(nn.Module):
    """Batch normalisation with fixed statistics and weights, as detectors keep it: (B, C, H, W) to the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels, 1, 1))
        self.register_buffer("shift", torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x * self.get_buffer("scale") + self.get_buffer("shift")
        return result


class Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut: (B, inputs, H, W) to (B, width, H / stride, W / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.bn2 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        x += shortcut
        result: Tensor = self.relu(x)
        return result


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut: (B, inputs, H, W) to (B, 4 width, H / stride, W / stride).

    With 32 ``groups`` the 3x3 is twice as wide, four channels in each group of the first stage (ResNeXt, 32x4d).
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d, groups: int = 1) -> None:
        super().__init__()
        outputs, inner = 4 * width, width if groups == 1 else 2 * width
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = norm(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = norm(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += shortcut
        result: Tensor = self.relu(x)
        return result


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, bn=norm(outputs)))


def body(
    block: type[Basic] | type[Bottleneck],
    blocks: tuple[int, ...],
    *,
    norm: Norm = nn.BatchNorm2d,
    groups: int = 1,
    strides: tuple[int, ...] = (1, 2, 2, 2),
    small: bool = False,
) -> OrderedDict[str, nn.Module]:
    """Return the layers before the classifier, in order: the stem, then ``layerS_I`` for block I of stage S.

    ``small`` is the stem for images of 32x32: one 3x3 convolution.
    """
    first = nn.Conv2d(3, 64, 3, padding=1, bias=False) if small else nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=first, bn1=norm(64), relu=nn.ReLU(inplace=True))
    if not small:
        layers["pool1"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = 64
    for stage, (count, stride) in enumerate(zip(blocks, strides, strict=False), 1):
        width = 32 * 2**stage
        for i in range(count):
            layers[f"layer{stage}_{i}"] = block(channels, width, stride if i == 0 else 1, norm, groups)
            channels = block.expansion * width
    return layers


def classifier(
    block: type[Basic] | type[Bottleneck], blocks: tuple[int, ...], *, groups: int = 1, small: bool = False
) -> nn.Module:
    """Return a ResNet, from images to logits of 1000 classes, or of 10 if ``small``."""
    layers = body(block, blocks, groups=groups, small=small)
    final = nn.Linear(512 * block.expansion, 10 if small else 1000)
    layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=final)
    model = he_init(nn.Sequential(layers))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Basic | Bottleneck):
                last = module.bn2 if isinstance(module, Basic) else module.bn3
                last.get_parameter("weight").zero_()
    return model


def resnet18_cifar() -> nn.Module:
    """Return ResNet-18 for CIFAR, from images (B, 3, 32, 32) to logits (B, 10)."""
    return classifier(Basic, SMALL, small=True)


def resnet18() -> nn.Module:
    """Return ResNet-18, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Basic, SMALL)


def resnet34() -> nn.Module:
    """Return ResNet-34, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Basic, MIDDLE)


def resnet50() -> nn.Module:
    """Return ResNet-50, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Bottleneck, MIDDLE)


def resnet101() -> nn.Module:
    """Return ResNet-101, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Bottleneck, LARGE)


def resnext101() -> nn.Module:
    """Return ResNeXt-101 32x4d, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Bottleneck, LARGE, groups=32)


def resnet152() -> nn.Module:
    """Return ResNet-152, from images (B, 3, 224, 224) to logits (B, 1000)."""
    return classifier(Bottleneck, LARGEST)
