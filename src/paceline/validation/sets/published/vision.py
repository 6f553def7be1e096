"""Vision networks of rows, by the names of their frameworks."""

from __future__ import annotations

import re

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.workload import Workload

_NAMES: tuple[tuple[str, str], ...] = (
    (r"resnet-?50(?![\dx])", "resnet-50"),
    (r"resnet-?18(?!\d)", "resnet-18"),
    (r"resnet-?34(?!\d)", "resnet-34"),
    (r"resnet-?101(?!\d)", "resnet-101"),
    (r"resnet-?152(?!\d)", "resnet-152"),
    (r"vgg-?16(?!_?bn|\d)", "vgg-16"),
    (r"retinanet", "retinanet"),
    (r"mask[_-]?rcnn", "mask-rcnn"),
    (r"vit[_-]base[_-]patch16(?:[_-]224)?|vit-base|\bvit-pytorch", "vit-b-16"),
)


def vision_network(row: Row) -> Workload | None:
    """Return the vision network that the row names; None if it names none."""
    text = row.text("model").casefold()
    if "clip" in text or "bert" in text:
        return None
    name = next((name for pattern, name in _NAMES if re.search(rf"(?<![a-z]){pattern}", text)), "")
    try:
        return Workload.named(name) if name else None
    except UserError:
        return None
