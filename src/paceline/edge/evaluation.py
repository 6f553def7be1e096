"""Quality of a network on held-out samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.slimming.export.onnx_export import feed, open_session
from paceline.training.runs.data import Dataset
from paceline.training.runs.loop import classification_loss

BATCH = 256


@torch.no_grad()
def held_out(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """Return the share of held-out labels predicted right, and the mean cross-entropy."""
    return _quality(model.eval(), data, BATCH)


def held_out_on_file(file: str | Path, data: Dataset, threads: int = 1) -> tuple[float, float]:
    """Evaluate an ONNX file for single samples on ONNX Runtime, as ``held_out``."""
    session = open_session(file, threads)
    return _quality(lambda x: torch.from_numpy(session.run(None, feed(session, (x,)))[0]), data, 1)


def _quality(output_of: Callable[[Tensor], Tensor], data: Dataset, batch: int) -> tuple[float, float]:
    right, loss = 0, 0.0
    for x, y in zip(data.test_x.split(batch), data.test_y.split(batch), strict=True):
        output = output_of(x)
        right += int((output.argmax(-1) == y).sum())
        loss += float(classification_loss(output, y)) * y.numel()
    return right / data.test_y.numel(), loss / data.test_y.numel()
