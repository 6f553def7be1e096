"""Chips whose training is not modelled, from ``unmodelled.toml``: their numbers, the reason, and the nearest that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from paceline.errors import UserError
from paceline.hardware.catalogue import devices, load
from paceline.hardware.device import Device, Fact
from paceline.hardware.device_rows import fact
from paceline.hardware.spelling import fold_hardware
from paceline.units import format_bandwidth, format_memory


@dataclass(frozen=True, slots=True)
class UnmodelledChip:
    """Chip that people train on and that no kernel curve covers.

    Attributes:
        fp32: peak of its largest variant in FLOP/s. ``memory``: bytes, at most. ``memory_bandwidth``: bytes/s.
        reason: why a step on it cannot be predicted.
    """

    name: str
    aliases: tuple[str, ...]
    fp32: Fact
    memory: Fact
    memory_bandwidth: Fact
    reason: str


@cache
def unmodelled() -> Mapping[str, UnmodelledChip]:
    """Return the chips by their folded names."""
    data = load("phrases/unmodelled.toml")
    index: dict[str, UnmodelledChip] = {}
    for row in data["chip"]:
        facts = {key: fact(row[key], data["sources"]) for key in ("fp32", "memory", "memory_bandwidth")}
        chip = UnmodelledChip(row["name"], tuple(row.get("aliases", ())), reason=data["reasons"][row["reason"]], **facts)
        index |= dict.fromkeys(map(fold_hardware, (chip.name, *chip.aliases)), chip)
    return index


def unmodelled_names() -> tuple[str, ...]:
    """Return the names and aliases of the chips."""
    return tuple(name for chip in dict.fromkeys(unmodelled().values()) for name in (chip.name, *chip.aliases))


def check_modelled(name: str) -> None:
    """Raise UserError, with the chip's numbers and the nearest GPU, if training on ``name`` is not modelled."""
    chip = unmodelled().get(fold_hardware(name))
    if chip is None:
        return
    has = (
        f"{chip.fp32.value / 1e12:.1f} TFLOP/s fp32, {format_memory(chip.memory.value)} at "
        f"{format_bandwidth(chip.memory_bandwidth.value)}"
    )
    raise UserError(
        f"{chip.name} ({has}): {chip.reason}",
        f"nearest of those that are: {_nearest(chip).name}; or measure yours: paceline hardware probe",
    )


def _nearest(chip: UnmodelledChip) -> Device:
    """Return the GPU whose fp32 rate and memory bandwidth are nearest, as factors."""

    def distance(one: Device) -> float:
        full = one.peak_flops.get("fp32")
        rates = (full.value / chip.fp32.value if full else math.inf, one.memory_bandwidth.value / chip.memory_bandwidth.value)
        return sum(math.log(rate) ** 2 for rate in rates)

    return min((one for one in devices() if one.kind == "gpu"), key=distance)
