"""Processors in int8, and the networks of MLPerf Tiny, for ``edge_latency.py --int8``. Nothing here measures.

The prediction is that of fp32 with other peaks: each layer is taken to come as near to the roofline in int8 there as in fp32
here. A value has a quarter of the bytes. The networks are the reference models of mlcommons/tiny, with random weights.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.hardware.device import Fact
from paceline.hardware.device_rows import fact
from paceline.hardware.edge import EdgeDevice, edge_device

FACTS = Path(__file__).parents[1] / "validation" / "edge" / "int8.toml"
BYTES = 4
"""Bytes of a value in fp32 over those in int8."""


@cache
def int8_facts() -> dict[str, Any]:
    """Return the peaks with their sources."""
    return tomllib.loads(FACTS.read_text(encoding="utf-8"))


def int8_device(name: str) -> EdgeDevice:
    """Return a processor with its peaks in int8, and the rate of its memory as if values had the bytes of fp32.

    Raises:
        KeyError: a processor without such peaks.
    """
    facts = int8_facts()
    for row in facts["microcontroller"]:
        if row["name"] == name:
            found = {each: fact(row[each], facts["sources"]) for each in ("one_core", "bandwidth")}
            peak, rate = found["one_core"], _times(found["bandwidth"], BYTES)
            return EdgeDevice(
                name=name, cores=1, one_core=peak, all_cores=peak, bandwidth=rate, vector=replace(rate, value=32.0)
            )
    share = next((row["value"] for row in facts["share"].values() if name in row["devices"]), None)
    if share is None:
        raise KeyError(name)
    device = edge_device(name)
    peaks = {each: _times(getattr(device, each), share) for each in ("one_core", "all_cores")}
    return replace(device, **peaks, bandwidth=_times(device.bandwidth, BYTES))


def _times(of: Fact, factor: float) -> Fact:
    return replace(of, value=of.value * factor)


def block(entering: int, leaving: int, kernel: int | tuple[int, int] = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution with a norm and ReLU, of an output as large as the input over the stride."""
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (size[0] // 2, (size[1] - 1) // 2)
    return nn.Sequential(nn.Conv2d(entering, leaving, size, stride, padding, groups=groups), nn.BatchNorm2d(leaving), nn.ReLU())


def separable(entering: int, leaving: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution of each channel, and one of size 1."""
    return nn.Sequential(block(entering, entering, 3, stride, entering), block(entering, leaving, 1))


class Residual(nn.Module):
    """Two convolutions of size 3 next to a shortcut."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.first = block(entering, leaving, 3, stride)
        self.second = nn.Sequential(nn.Conv2d(leaving, leaving, 3, padding=1), nn.BatchNorm2d(leaving))
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(entering, leaving, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return (self.second(self.first(x)) + self.shortcut(x)).relu()


def pooled(width: int, classes: int) -> nn.Sequential:
    """Return the mean over the image, and classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def image_classification() -> nn.Module:
    """Return ResNet-8 for CIFAR-10."""
    return nn.Sequential(block(3, 16), Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2), pooled(64, 10))


def keyword_spotting() -> nn.Module:
    """Return DS-CNN for twelve words."""
    return nn.Sequential(block(1, 64, (10, 4), 2), *(separable(64, 64) for _ in range(4)), pooled(64, 12))


def visual_wake_words() -> nn.Module:
    """Return MobileNet-v1 of a quarter of the width for two classes."""
    widths = (8, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    layers = (separable(*each, stride) for each, stride in zip(pairwise(widths), strides, strict=True))
    return nn.Sequential(block(3, 8, 3, 2), *layers, pooled(256, 2))


def anomaly_detection() -> nn.Module:
    """Return the autoencoder of dense layers."""
    widths = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
    layers: list[nn.Module] = []
    for entering, leaving in pairwise(widths):
        layers += [nn.Linear(entering, leaving), nn.BatchNorm1d(leaving), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))


TINY: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tiny-ic": (image_classification, (3, 32, 32)),
    "tiny-kws": (keyword_spotting, (1, 49, 10)),
    "tiny-vww": (visual_wake_words, (3, 96, 96)),
    "tiny-ad": (anomaly_detection, (640,)),
}
"""Network of each task, and the shape of its input."""
