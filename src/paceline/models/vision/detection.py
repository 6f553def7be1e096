"""Detectors of MLPerf Training, reduced to dense compute: without matching, sorting and suppression of boxes. Losses are means.

SSD-ResNet34, 300x300, 81 classes: Liu et al. 2016 (arXiv:1512.02325) in the form of mlcommons/training,
single_stage_detector (v0.6 to v1.1): ResNet-34 up to its third stage, which keeps 38x38; six maps, 8,732 boxes.

SSD-ResNet50 is the form of NVIDIA DeepLearningExamples, PyTorch/Detection/SSD: the same on ResNet-50, its added
convolutions normalised.

RetinaNet, ResNeXt-50 32x4d, 800x800, 264 classes of Open Images: Lin et al. 2017 (arXiv:1708.02002) in the form of torchvision,
which MLPerf uses from v2.0 on: nine boxes a place on five levels; normalisation frozen, as are the stem and the first stage.

Mask R-CNN, ResNet-50, 800x1344 (1333 to the next multiple of 32), 81 classes: He et al. 2017 (arXiv:1703.06870) with the
feature pyramid of Lin et al. 2016 (arXiv:1612.03144). Each image has 512 proposals and 128 of them a mask, the published
numbers for training. Each of a proposal's 7x7 or 14x14 bins reads one position; they cover the finest level.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.models.vision.resnet import MIDDLE, Basic, Bottleneck, FrozenNorm, body

SSD_CLASSES, RETINA_CLASSES, MASK_CLASSES = 81, 264, 81
PROPOSALS, MASKS = 512, 128


class Stages(nn.Module):
    """A residual body that returns the outputs of the named layers: (B, 3, H, W) to a list of maps."""

    def __init__(self, layers: dict[str, nn.Module], wanted: Sequence[str]) -> None:
        super().__init__()
        self.layers, self.wanted = nn.ModuleDict(layers), tuple(wanted)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for name, layer in self.layers.items():
            x = layer(x)
            if name in self.wanted:
                maps.append(x)
        return maps


class Ssd(nn.Module):
    """SSD, from images (B, 3, 300, 300) to offsets (B, 4, 8732) and class logits (B, 81, 8732)."""

    def __init__(self, block: type[Basic] | type[Bottleneck], *, normalised: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(body(block, MIDDLE[:3], strides=(1, 2, 1)))

        def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> list[nn.Module]:
            layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=not normalised)
            return [layer, *([nn.BatchNorm2d(outputs)] if normalised else []), nn.ReLU(inplace=True)]

        first, last = 256 * block.expansion, (256, 128, 256, 1, 0)
        plan = ((first, 256, 512, 2, 1), (512, 256, 512, 2, 1), (512, 128, 256, 2, 1), last, last)
        self.more = nn.ModuleList(
            nn.Sequential(*conv(inputs, inner, 1), *conv(inner, outputs, 3, stride, padding))
            for inputs, inner, outputs, stride, padding in plan
        )
        maps = tuple(zip((first, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4), strict=True))
        self.offsets = nn.ModuleList(nn.Conv2d(width, 4 * boxes, 3, padding=1) for width, boxes in maps)
        self.classes = nn.ModuleList(nn.Conv2d(width, SSD_CLASSES * boxes, 3, padding=1) for width, boxes in maps)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.body(x)]
        for block in self.more:
            maps.append(block(maps[-1]))
        offsets = [layer(m).view(len(m), 4, -1) for layer, m in zip(self.offsets, maps, strict=True)]
        classes = [layer(m).view(len(m), SSD_CLASSES, -1) for layer, m in zip(self.classes, maps, strict=True)]
        return torch.cat(offsets, 2), torch.cat(classes, 2)


class Pyramid(nn.Module):
    """Feature pyramid, from maps of growing width and falling resolution to as many maps of 256 channels."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(width, 256, 1) for width in widths)
        self.outer = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in widths)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        above: Tensor | None = None
        widened = []
        for inner, outer, x in reversed(list(zip(self.inner, self.outer, maps, strict=True))):
            above = inner(x) if above is None else inner(x) + F.interpolate(above, size=x.shape[-2:])
            widened.append(outer(above))
        return widened[::-1]


def _tower(outputs: int) -> nn.Module:
    """Return four convolutions of 256 channels, and one to ``outputs``."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(256, outputs, 3, padding=1))


def _frozen(groups: int, wanted: Sequence[str]) -> Stages:
    """Return a body of 50 layers with frozen normalisation, stem and first stage."""
    stages = Stages(body(Bottleneck, MIDDLE, norm=FrozenNorm, groups=groups), wanted)
    for name, layer in stages.layers.items():
        layer.requires_grad_(not name.startswith(("conv1", "layer1")))
    return stages


_ENDS = ("layer1_2", "layer2_3", "layer3_5", "layer4_2")


class RetinaNet(nn.Module):
    """RetinaNet, from images (B, 3, H, W) to class logits (B, positions x 9, classes) and offsets (B, positions x 9, 4)."""

    def __init__(self, groups: int, classes: int) -> None:
        super().__init__()
        self.body = _frozen(groups, _ENDS[1:])
        self.pyramid = Pyramid((512, 1024, 2048))
        self.coarser = nn.ModuleList(nn.Conv2d(256, 256, 3, stride=2, padding=1) for _ in range(2))
        self.classify, self.locate, self.classes = _tower(9 * classes), _tower(9 * 4), classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.pyramid(self.body(x))
        maps.append(self.coarser[0](maps[-1]))
        maps.append(self.coarser[1](maps[-1].relu()))
        logits = [self.classify(m).flatten(2).transpose(1, 2).reshape(len(m), -1, self.classes) for m in maps]
        offsets = [self.locate(m).flatten(2).transpose(1, 2).reshape(len(m), -1, 4) for m in maps]
        return torch.cat(logits, 1), torch.cat(offsets, 1)


class MaskRcnn(nn.Module):
    """Mask R-CNN, from images (B, 3, H, W) to objectness, offsets of anchors, logits and offsets of proposals, and masks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = _frozen(1, _ENDS)
        self.pyramid = Pyramid((256, 512, 1024, 2048))
        self.propose = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True))
        self.objects, self.anchors = nn.Conv2d(256, 3, 1), nn.Conv2d(256, 12, 1)
        self.box = nn.Sequential(
            nn.Flatten(), nn.Linear(256 * 49, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024), nn.ReLU(inplace=True)
        )
        self.classes, self.offsets = nn.Linear(1024, classes), nn.Linear(1024, 4 * classes)
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True)]
        final = nn.ConvTranspose2d(256, 256, 2, stride=2), nn.ReLU(inplace=True), nn.Conv2d(256, classes, 1)
        self.mask = nn.Sequential(*layers, *final)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = self.pyramid(self.body(x))
        levels = [self.propose(m) for m in (*maps, F.max_pool2d(maps[-1], 1, 2))]
        objects = torch.cat([self.objects(m).flatten(1) for m in levels], 1)
        anchors = torch.cat([self.anchors(m).flatten(1) for m in levels], 1)
        features = self.box(_bins(maps[0], PROPOSALS, 7))
        return objects, anchors, self.classes(features), self.offsets(features), self.mask(_bins(maps[0], MASKS, 14))


def _bins(features: Tensor, proposals: int, side: int) -> Tensor:
    """Sample one position per bin, evenly spaced: (B, C, H, W) to (B x proposals, C, side, side)."""
    places = features.shape[-2] * features.shape[-1]
    chosen = torch.linspace(0, places - 1, proposals * side * side, device=features.device).long()
    picked: Tensor = features.flatten(2).index_select(2, chosen).unflatten(2, (proposals, side, side))
    return picked.transpose(1, 2).flatten(0, 1)


def ssd_resnet34() -> nn.Module:
    """Return SSD with ResNet-34, from images (B, 3, 300, 300) to offsets (B, 4, 8732) and class logits (B, 81, 8732)."""
    return Ssd(Basic, normalised=False)


def ssd_resnet50() -> nn.Module:
    """Return SSD with ResNet-50, from images (B, 3, 300, 300) to offsets (B, 4, 8732) and class logits (B, 81, 8732)."""
    return Ssd(Bottleneck, normalised=True)


def retinanet() -> nn.Module:
    """Return RetinaNet, from images (B, 3, 800, 800) to class logits and offsets of 120,087 boxes."""
    return RetinaNet(groups=32, classes=RETINA_CLASSES)


def mask_rcnn() -> nn.Module:
    """Return Mask R-CNN, from images (B, 3, 800, 1344) to objectness, boxes and masks."""
    return MaskRcnn(MASK_CLASSES)
