"""Vision networks of timm and torchvision in rows, with the size and the memory format of images.

Networks of timm and torchvision are traced from timm, which needs torch: rows of others are read without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.strategy.memory_format import CHANNELS_LAST, CONTIGUOUS
from paceline.workload import Workload

_OF_TORCHVISION: Mapping[str, str] = {
    "mobilenet_v2": "mobilenetv2_100",
    "mnasnet0_5": "mnasnet_050",
    "mnasnet0_75": "mnasnet_075",
    "mnasnet1_0": "mnasnet_100",
    **{name: name for name in ("resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2", "wide_resnet101_2")},
    **{f"densenet{layers}": f"densenet{layers}" for layers in (121, 161, 169, 201)},
    **{f"vgg{layers}{norm}": f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")},
    **{f"resnet{layers}": f"resnet{layers}" for layers in (18, 34, 50, 101, 152)},
}
"""Networks of torchvision that timm has with equal layers, by their names in torchvision."""
IN_ONE_PROCESS = "several devices of one process (DataParallel)"
_FUSED_SINCE = 2
"""Release of PyTorch from which timm's networks take fused attention (timm, ``layers/config.py``)."""


def vision_network(row: Row) -> Workload | None:
    """Return the network of timm or torchvision that the row names; None if it names none.

    Raises:
        UserError: devices that one process drives, which is not modelled.
    """
    text, framework = row.text("model").casefold(), row.text("framework").casefold()
    if "torchvision" in text or "timm" in framework:
        return _of_timm(row, text.partition(" ")[0], framework)
    return None


def _of_timm(row: Row, name: str, framework: str) -> Workload | None:
    """Return a network of timm, or the same of torchvision; None if timm is not installed or lacks it."""
    if "torchvision" in framework and row.text("num_devices") not in ("", "1"):
        raise UserError(IN_ONE_PROCESS)  # ryujaehun/pytorch-gpu-benchmark, benchmark_models.py
    name = _OF_TORCHVISION.get(name, "") if "torchvision" in framework else name
    size = re.search(r"(?:image |\b)(\d{2,4})(?:x\1)?\b", row.text("other_options"))
    release = re.search(r"pytorch\D*(\d+)", framework)
    fused = release is not None and int(release[1]) >= _FUSED_SINCE
    try:
        return Workload.named(f"timm/{name}", fused_attention=fused, inputs=f"3x{size[1]}x{size[1]}" if size else "")
    except UserError:
        return None


def memory_format(row: Row) -> str:
    """Return the memory format of images that the row or its file states; empty if neither does."""
    said = f"{row.text('other_options')} {row.text('source')}".casefold()
    if re.search(r"channels[ _-]last|\bnhwc\b", said):
        return CHANNELS_LAST
    return CONTIGUOUS if re.search(r"channels[ _-]first|\bnchw\b|contiguous", said) else ""
