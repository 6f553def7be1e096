"""VGG, configurations A (11 layers) and D (16 layers).

Source: Simonyan, Zisserman, ICLR 2015 (arXiv:1409.1556), table 1; no batch normalisation, as published.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from paceline.models.init import he_init

_WIDTHS = (64, 128, 256, 512, 512)


def _vgg(convs_per_stage: tuple[int, ...]) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for stage, (count, width) in enumerate(zip(convs_per_stage, _WIDTHS, strict=True), 1):
        for i in range(1, count + 1):
            layers[f"conv{stage}_{i}"] = nn.Conv2d(channels, width, 3, padding=1)
            layers[f"relu{stage}_{i}"] = nn.ReLU(inplace=True)
            channels = width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    for i, inputs in ((6, 512 * 7 * 7), (7, 4096)):
        layers[f"fc{i}"] = nn.Linear(inputs, 4096)
        layers[f"relu{i}"] = nn.ReLU(inplace=True)
        layers[f"drop{i}"] = nn.Dropout(0.5)
    layers["fc8"] = nn.Linear(4096, 1000)
    return he_init(nn.Sequential(layers))


def vgg_a() -> nn.Module:
    """Return VGG A, from images (B, 3, 224, 224) to logits (B, 1000): 132,863,336 parameters."""
    return _vgg((1, 1, 2, 2, 2))


def vgg_16() -> nn.Module:
    """Return VGG-16, from images (B, 3, 224, 224) to logits (B, 1000): 138,357,544 parameters."""
    return _vgg((2, 2, 3, 3, 3))
