"""Constants of accelerators that are no GPUs, by family, where those of GPUs do not hold.

A compiler schedules the whole step of a TPU or a Trainium ahead of time, so that few kernels wait for a launch. Products run at
a clock that does not fall. ``Device.array`` and ``Device.vector_rate`` say what else differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType

from paceline.calibration.constants import Efficiency
from paceline.calibration.protocols import BARE, Protocol
from paceline.hardware.device import Device


@dataclass(frozen=True, slots=True)
class Family:
    """Chips of one design and software.

    Attributes:
        name: beginning of the names of its devices.
        kind: ``Device.kind`` of them.
        source: origin of the numbers.
        products: share of the datasheet's peak that large products reach in a step, by chip; empty: that of GPUs.
        bare: whether its collectives have no protocols of NCCL, only the costs of the links.
        lazy: whether ordinary software records the step's operations again on the host, before a graph of them runs.
        launches: launches that remain of a framework's kernels, for a step that is compiled as a whole.
    """

    name: str
    kind: str
    source: str
    products: Mapping[str, float] = field(default_factory=dict)
    launches: float = 1.0
    bare: bool = False
    lazy: bool = False

    def products_of(self, chip: str, without: str) -> float:
        """Return the share of a chip, else the geometric mean of the others; 0 without any.

        Args:
            without: chip whose measurements are excluded.
        """
        known = {name: share for name, share in self.products.items() if name != without}
        if chip in known:
            return known[chip]
        return math.exp(sum(map(math.log, known.values())) / len(known)) if known else 0.0


@cache
def families() -> tuple[Family, ...]:
    """Return all families. The reader of TOML is imported only in this function."""
    import tomllib

    data = tomllib.loads(files("paceline.calibration").joinpath("accelerators.toml").read_text(encoding="utf-8"))
    return tuple(Family(**{**row, "source": data["sources"][row["source"]]}) for row in data["family"])


def family(device: Device) -> Family | None:
    """Return the family of a device; None if the constants of GPUs hold for it."""
    own = (f for f in families() if device.kind == f.kind and device.name.startswith(f.name))
    return next(own, None) if device.kind in ("tpu", "accelerator") else None


def protocols(e: Efficiency, device: Device) -> tuple[Protocol, ...]:
    """Return the protocols of the collectives of a device: NCCL's, or none but the costs of the links."""
    own = family(device)
    return BARE if device.kind == "cpu" or (own is not None and own.bare) else e.protocols


@lru_cache(maxsize=64)
def on_device(e: Efficiency, device: Device) -> Efficiency:
    """Return the constants of a device's family.

    Fused attention keeps the ratio to products that it has on GPUs. Convolutions run as products.
    """
    own = family(device)
    if own is None:
        return e
    launch = {**e.launch_s, device.kind: own.launches * e.launch_s[device.kind]}
    changed = replace(e, launch_s=MappingProxyType(launch))
    share = own.products_of(device.chip, e.without)
    if not share:
        return changed
    attention = share * e.attention_share / e.matrix_share
    return replace(
        changed, matmul_share=1.0, matrix_share=share, matrix_conv_share=share, attention_share=attention, feeding=0.0
    )
