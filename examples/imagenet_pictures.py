"""ImageNet's pictures from a folder, and the accuracy over all ranks, for the recipes beside this file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paceline.errors import UserError

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's pixels, 0 to 255


class Pictures(Dataset[tuple[Tensor, int]]):
    """uint8 (3, size, size) and the class number, classes in alphabetical order.

    Training: a random crop of 8 to 100 % of the area, 3:4 to 4:3, and a flip (Szegedy et al. 2015, section 6). Test: the
    middle of the picture, its shorter side scaled to 256/224 of the size.
    """

    def __init__(self, folder: Path, size: int, training: bool) -> None:
        classes = sorted(d.name for d in folder.iterdir() if d.is_dir()) if folder.is_dir() else []
        found = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
        self.files = [(path, label) for path, label in found if path.suffix.lower() in (".jpeg", ".jpg", ".png")]
        if not self.files:
            raise UserError(f"no pictures in {folder}", "give the directory that holds train/<class>/ and val/<class>/")
        self.classes, self.size, self.training = classes, size, training

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        box = _random_box(*image.size) if self.training else _middle_box(*image.size)
        pixels = np.array(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box))
        if self.training and torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1].copy()
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def both_parts(folder: Path, size: int) -> tuple[Pictures, Pictures]:
    """For training and for the test. Raises UserError where their classes differ."""
    training, test = (Pictures(folder / part, size, part == "train") for part in ("train", "val"))
    if training.classes != test.classes:
        raise UserError(f"train/ has {len(training.classes)} classes, val/ others", "sort val/ into the same folders")
    return training, test


def _random_box(width: int, height: int) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * float(torch.empty(()).uniform_(0.08, 1))
        aspect = math.exp(float(torch.empty(()).uniform_(-1, 1)) * math.log(4 / 3))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = float(torch.rand(())) * (width - w), float(torch.rand(())) * (height - h)
            return left, top, left + w, top + h
    return _middle_box(width, height, 1.0)


def _middle_box(width: int, height: int, share: float = 224 / 256) -> tuple[float, float, float, float]:
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def batches(loader: DataLoader[tuple[Tensor, int]], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels of mean 0 and deviation 1, and labels, on the device."""
    mean, deviation = (torch.tensor(v, device=device).view(3, 1, 1) for v in (MEAN, DEVIATION))
    for pixels, labels in loader:
        x = (pixels.to(device, non_blocking=True).float() - mean) / deviation
        yield x.contiguous(memory_format=torch.channels_last), labels.to(device, non_blocking=True)


@torch.no_grad()
def accuracy(model: nn.Module, tester: DataLoader[tuple[Tensor, int]], device: torch.device) -> float:
    """Top-1 over the pictures of all ranks, with rank 0's running statistics."""
    model.eval()
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for x, y in batches(tester, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            counts += torch.stack([(model(x).argmax(1) == y).sum(), torch.tensor(len(y), device=device)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])
