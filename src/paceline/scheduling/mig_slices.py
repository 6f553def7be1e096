"""Slices of GPUs (NVIDIA Multi-Instance GPU) as device types of a fleet.

``A100 1g.5gb`` is a seventh of an A100 of 40 GB, and ``A100 1g.10gb`` of one of 80 GB. Each slice is one device.
Source: NVIDIA, Multi-Instance GPU User Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import UserError, shorten
from paceline.hardware.catalogue import device, device_names, is_device

_OF_A100_40 = {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
_OF_80_GB = {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
PROFILES: Mapping[str, Mapping[str, int]] = {
    "A100 SXM 80GB": _OF_80_GB,
    "A100 PCIe 80GB": _OF_80_GB,
    "A100 SXM 40GB": _OF_A100_40,
    "A100 PCIe 40GB": _OF_A100_40,
    "H100 SXM": _OF_80_GB,
    "H100 PCIe": _OF_80_GB,
    "H200": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
    "A30": {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1},
}
"""Most slices of each profile on a device."""
_NAME = re.compile(r"(?P<device>.*?)[\s_:-]*(?:MIG[\s_-]*)?(?:(?P<count>\d)\s*x\s*)?(?P<profile>\d+g\.\d+gb)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SliceType:
    """Type of a slice.

    Attributes:
        name: name of the type, such as ``A100 1g.5gb``.
        device: device in the catalogue that is cut.
        most: most such slices of a device.
        count: slices that each device is cut into, as stated; 0: not stated.
    """

    name: str
    device: str
    most: int
    count: int = 0

    @property
    def part(self) -> float:
        """Part of a device that a slice takes from other slices."""
        return 1 / self.most


def slice_type(name: str) -> SliceType | None:
    """Parse ``A100 1g.5gb`` or, for devices that are cut into seven, ``A100 7x1g.5gb``; None for the name of no slice.

    Raises:
        UserError: a profile that the device lacks, or more slices than it has.
    """
    match = _NAME.fullmatch(name.strip())
    if match is None:
        return None
    parent, profile, count = match["device"], match["profile"].lower(), int(match["count"] or 0)
    found = next((known for known in _variants(parent) if profile in PROFILES.get(known, ())), "")
    if not found:
        legal = dict.fromkeys(slices for known in _variants(parent) for slices in PROFILES.get(known, ()))
        choices = ", ".join(legal) or f"slices of {', '.join(PROFILES)}"
        raise UserError(f"{shorten(name, 40)!r} is no slice", f"legal: {choices}")
    most = PROFILES[found][profile]
    if count > most:
        raise UserError(f"{count} slices {profile} of {found}", f"it has {most} at most")
    return SliceType(f"{found.split()[0]} {profile}", found, most, count)


def _variants(name: str) -> list[str]:
    """Return the device that a name means, and then its variants with other memory."""
    if not is_device(name):
        return []
    first = device(name).name
    family = first.split()[0]
    return [first, *(other for other in PROFILES if other != first and other.split()[0] == family and other in device_names())]
