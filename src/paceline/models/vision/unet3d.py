"""3D U-Net of MLPerf Training for KiTS19, from one channel of 128x128x128 voxels to three classes.

Source: Isensee et al. 2018 (nnU-Net, arXiv:1809.10486) and Cicek et al. 2016 (arXiv:1606.06650) in the form of
mlcommons/training, image_segmentation/pytorch: widths 32, 64, 128, 256, 320 and 320 again below, two 3x3x3 convolutions a
level with instance normalisation, downsampling by stride, upsampling by transposed convolutions of 2x2x2.
The loss (Dice and cross entropy over the voxels) is counted as a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDTHS = (32, 64, 128, 256, 320, 320)


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.InstanceNorm3d(outputs, affine=True), nn.ReLU())


class Up(nn.Module):
    """Layer that doubles the resolution and concatenates the skip connection: two tensors to (B, outputs, 2D, 2H, 2W)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.widen = nn.ConvTranspose3d(inputs, outputs, 2, stride=2)
        self.convs = nn.Sequential(_conv(2 * outputs, outputs), _conv(outputs, outputs))

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        result: Tensor = self.convs(torch.cat((self.widen(x), skip), 1))
        return result


class Unet3d(nn.Module):
    """3D U-Net, from volumes (B, 1, D, H, W) with sides that are multiples of 32 to logits (B, 3, D, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip((1, *_WIDTHS), _WIDTHS, strict=False))
        self.down = nn.ModuleList(
            nn.Sequential(_conv(inputs, outputs, 2 if i else 1), _conv(outputs, outputs))
            for i, (inputs, outputs) in enumerate(pairs)
        )
        self.up = nn.ModuleList(Up(outputs, inputs) for inputs, outputs in reversed(pairs[1:]))
        self.output = nn.Conv3d(_WIDTHS[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for down in self.down:
            x = down(x)
            levels.append(x)
        for up, skip in zip(self.up, reversed(levels[:-1]), strict=True):
            x = up(x, skip)
        result: Tensor = self.output(x)
        return result


def unet3d() -> nn.Module:
    """Return 3D U-Net, from volumes (B, 1, 128, 128, 128) to logits (B, 3, 128, 128, 128)."""
    return Unet3d()
