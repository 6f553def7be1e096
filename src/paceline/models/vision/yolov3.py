"""YOLOv3 for the 20 classes of Pascal VOC, images of 448x448.

Source: Redmon, Farhadi 2018 (arXiv:1804.02767), table 1 (Darknet-53) and section 2.3, in the form that Pollux trains
(petuum/adaptdl, benchmark/models/yolov3): three scales of three boxes, 25 numbers a box. The loss of boxes counts as a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BOX_NUMBERS = 3 * (20 + 5)
_STAGES = (1, 2, 8, 8, 4)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1, inplace=True))


class YoloResidual(nn.Module):
    """1x1 and 3x3 convolutions added to their input: (B, width, H, W) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(_conv(width, width // 2, 1), _conv(width // 2, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.convs(x)
        return result


class Darknet53(nn.Module):
    """Darknet-53, from images (B, 3, H, W) to features at 1/8, 1/16 and 1/32 of the resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 32, 3)
        self.stages = nn.ModuleList()
        for i, blocks in enumerate(_STAGES):
            width = 64 * 2**i
            self.stages.append(nn.Sequential(_conv(width // 2, width, 3, 2), *(YoloResidual(width) for _ in range(blocks))))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = [self.stem(x)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features[3:]


class YoloScale(nn.Module):
    """Five convolutions, then the boxes of one scale: features to (features for the next scale, boxes)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        steps = [_conv(inputs, width, 1), _conv(width, 2 * width, 3), _conv(2 * width, width, 1)]
        self.convs = nn.Sequential(*steps, _conv(width, 2 * width, 3), _conv(2 * width, width, 1))
        self.boxes = nn.Sequential(_conv(width, 2 * width, 3), nn.Conv2d(2 * width, _BOX_NUMBERS, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.convs(x)
        return x, self.boxes(x)


class Yolov3(nn.Module):
    """YOLOv3, from images (B, 3, H, W) to the boxes of three scales, each (B, 75, H / s, W / s) for s of 32, 16 and 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Darknet53()
        self.scales = nn.ModuleList([YoloScale(1024, 512), YoloScale(512 + 256, 256), YoloScale(256 + 128, 128)])
        self.narrow = nn.ModuleList([_conv(512, 256, 1), _conv(256, 128, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        small, middle, large = self.body(x)
        x, first = self.scales[0](large)
        x = nn.functional.interpolate(self.narrow[0](x), scale_factor=2.0)
        x, second = self.scales[1](torch.cat((middle, x), 1))
        x = nn.functional.interpolate(self.narrow[1](x), scale_factor=2.0)
        _, third = self.scales[2](torch.cat((small, x), 1))
        return first, second, third


def yolov3() -> nn.Module:
    """Return YOLOv3, from images (B, 3, 448, 448) to the boxes of three scales."""
    return Yolov3()
