"""Cloud TPU slices by the names of their accelerator types: ``v5e-8``, ``v5litepod-16``, ``v5p-128``.

The number counts chips of v5e and v6e, which have one TensorCore each, and TensorCores of v2, v3, v4 and v5p, which have two
(Google Cloud, cloud.google.com/tpu/docs/v5e and /v5p, read 2026-11-23: "v5p-32 specifies a slice with 32 TensorCores (16
chips)"). All chips of a slice are joined by their own links, so that a slice is one node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import UserError

_SLICE = re.compile(r"\s*(?:google\s+)?(?:cloud\s+)?(?:tpu[\s_-]*)?v([2-6])(e|p|litepod)?[\s_-]+([0-9]{1,6})\s*", re.IGNORECASE)
_SINGLE = (1, 4, 8, 16, 32, 64, 128, 256)  # chips of the shapes of v5e and v6e
_CORES, _HOST = 2, 8  # TensorCores of a chip, and of the least slice: a host of four chips
_LARGEST = {"v2": 512, "v3": 2048, "v4": 8192, "v5p": 12288}  # TensorCores
SOURCE, DATE = "Google Cloud, shapes of slices (cloud.google.com/tpu/docs/v5e, /v5p)", "2026-11-23"


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """Slice of ``chips`` catalogue devices of type ``device``; ``name`` is its accelerator type."""

    name: str
    device: str
    chips: int


def tpu_slice(name: str) -> TpuSlice | None:
    """Return the slice of that name; None for other names.

    Raises:
        UserError: a number of chips or TensorCores that no slice of this generation has.
    """
    match = _SLICE.fullmatch(name)
    if match is None:
        return None
    letter, count = (match[2] or "").lower().replace("litepod", "e"), int(match[3])
    kind = f"v{match[1]}{letter}"
    if kind in ("v5e", "v6e"):
        if count not in _SINGLE:
            raise UserError(f"a slice of {count} chips of TPU {kind}", f"it has {', '.join(map(str, _SINGLE))} chips")
        return TpuSlice(f"{kind}-{count}", f"TPU {kind}", count)
    if kind not in _LARGEST:
        return None
    if count % _HOST or not 0 < count <= _LARGEST[kind]:
        fix = f"{kind}-N counts TensorCores, two a chip: a multiple of {_HOST} up to {_LARGEST[kind]:,}"
        raise UserError(f"a slice of {count} TensorCores of TPU {kind}", fix)
    return TpuSlice(f"{kind}-{count}", f"TPU {kind}", count // _CORES)
