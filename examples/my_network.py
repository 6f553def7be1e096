"""A network and data of one's own, as ``module:function``.

cd examples && paceline train --model my_network:network --data my_network:data --workers 2 --epochs 3
cd examples && paceline workload show my_network:network
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network() -> tuple[nn.Module, Tensor]:
    """A small convolutional network and one example batch (the batch is what ``workload show`` traces it with)."""
    layers = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 2)
    )
    return layers, torch.zeros(2, 1, 8, 8)


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images 8x8 whose brighter half, left or right, is the class: train_x, train_y, test_x, test_y."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1200, 1, 8, 8, generator=generator)
    y = (x[..., :4].sum((1, 2, 3)) < x[..., 4:].sum((1, 2, 3))).long()
    return x[:1000], y[:1000], x[1000:], y[1000:]
