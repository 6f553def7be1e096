"""Quality of a network on held-out samples."""

from __future__ import annotations

import torch
from torch import nn

from paceline.training.data import Dataset
from paceline.training.loop import classification_loss

BATCH = 256


@torch.no_grad()
def held_out(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """Share of the held-out labels that are predicted right, and the mean cross-entropy."""
    model.eval()
    right, loss = 0, 0.0
    for x, y in zip(data.test_x.split(BATCH), data.test_y.split(BATCH), strict=True):
        output = model(x)
        right += int((output.argmax(-1) == y).sum())
        loss += float(classification_loss(output, y)) * y.numel()
    return right / data.test_y.numel(), loss / data.test_y.numel()


__all__ = ["BATCH", "held_out"]
