"""Curves of matrix products by chip and precision, fitted to measured products.

``products.json`` holds a few physical numbers for each measured chip and precision, and a small table of corrections.
``benchmarks/fit_products.py`` writes it. A device without measurements takes the curve of the nearest measured chip, scaled by
its datasheet (``product_curve``). ``prediction/passes/products.py`` evaluates the curves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.calibration.attention import family
from paceline.hardware.device import Device
from paceline.hardware.precision import PRECISIONS, RECIPES, WIDE

KNOTS = (np.linspace(8, 15, 6), np.linspace(5, 15, 6), np.linspace(5, 16, 6))
"""Logarithms (of 2) of the larger and the smaller side of the result and of the depth, at which corrections are given."""
_SAME_KERNELS: Mapping[str, str] = {"mxfp8": "fp8-block", "fp8-current": "fp8"}
"""Recipes whose products have the shape and scales of others'. DeepGEMM scales blocks by powers of two on Blackwell, as the MX
formats do."""
_MOST = 0.98
"""Largest sustained share of a peak: that of the A100, which the power limits least."""
_UNUSED = 0.2
"""Exponent with which more power for each FLOP raises that share: other limits remain. A B300 with 1.4 times the power of a
B200 reaches 1.014 times its product (catalogue); an exponent of 0.2 was chosen in sight of that."""
_NO_JOULES: Mapping[str, float] = {}
_FAMILIES = ("Ampere GA100", "Ada", "Hopper", "Blackwell")
"""Families with a measured chip. Without its rows, steps on GA10x were 17 % off with the curve of L40S and 9 % with the plain
form of ``compute.py``, and on Volta 14 and 12 %: they keep that form."""
_GEFORCE = 2.1
"""Rate of the matrix units over fp32 up to which they are GeForce boards', which add up at half the rate of measured chips."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductCurve:
    """Time of matrix products on one device in one precision.

    Attributes:
        chip: name of the measured device. ``device``: name of the device it is scaled to.
        peak: FLOP/s of the datasheet. ``units``: multiprocessors. ``bandwidth``: bytes/s of the memory.
        share: share of the peak that short products reach. ``sustained``: share of that which the board's power permits for
            long. ``heating_s``: seconds after which the clock falls half of the way.
        feed: bytes/s of operands that reach all units together, per FLOP/s of the peak. Multicast counts for each receiver.
        memory: share of the memory's bandwidth.
        launch_s: seconds of an empty product in a graph. ``tile_s``: seconds to fill and drain a unit's pipeline.
        whole: weight of whole waves. 0: a part of a wave takes a part of the time, since the next tiles start early.
        sharpness: exponent that joins computing and memory. Infinite: the slower one alone counts.
        split: least depth of a part when a product is divided along its depth.
        written: times that a result crosses from a unit to the cache.
        reread: share of the operands that waves read again from memory.
        cached: bytes of the cache for each unit. ``cached_sharpness``: exponent with which operands fit in it.
        cast_bytes: bytes that the measured cast of the first operand moves for each element. ``cast_s``: seconds of its
            launches. ``cast_cached``: share of its time that a cache saves. All three are 0 if no cast was measured.
        correction: logarithms of factors on the seconds, at ``KNOTS``; empty for none.
    """

    chip: str
    precision: str
    device: str = ""
    peak: float
    units: float
    bandwidth: float
    share: float
    sustained: float
    heating_s: float
    feed: float
    memory: float
    launch_s: float
    tile_s: float
    whole: float
    sharpness: float
    split: float
    written: float
    reread: float
    cached: float
    cached_sharpness: float
    cast_bytes: float = 0.0
    cast_s: float = 0.0
    cast_cached: float = 0.0
    correction: Array

    @property
    def width(self) -> float:
        """Bytes of an element of an operand, with its scales."""
        recipe = RECIPES.get(self.precision)
        if recipe is not None:
            return recipe.operand
        return float(PRECISIONS[self.precision].bytes)

    @property
    def rate(self) -> float:
        """FLOP/s of a large product that runs for long."""
        return self.peak * self.share * self.sustained


def has_curve(device: Device, precision: str) -> bool:
    """Return whether products of that precision on the device follow a curve."""
    own, full = PRECISIONS[precision], device.peak_flops.get("fp32")
    if WIDE not in device.peak_flops or full is None or device.units is None or family(device) not in _FAMILIES:
        return False
    on_matrix_units = own.on_matrix_units or own.scales_loss or precision in RECIPES
    return on_matrix_units and device.peak(WIDE).value > _GEFORCE * full.value


def product_curve(
    device: Device, precision: str, joules: Mapping[str, float] = _NO_JOULES, without: frozenset[str] = frozenset()
) -> ProductCurve:
    """Return the curve of a device: its own, or that of the nearest measured chip, scaled.

    The nearest chip has kernels of the same family if possible. Among several it is the one with the nearest FLOPs for each
    unit and cycle. Times stay, and the peak, the units and the memory are those of the device. Operands reach a unit of the
    same family at the same bytes a cycle, and one of another family at the same bytes for each FLOP. A product that was
    measured on both boards scales the rate. Without one, the share of the peak falls as the power for each FLOP does, and rises
    slowly with it, up to ``_MOST``.

    Args:
        joules: FLOP/J in 16 bits that the boards of an architecture sustain.
        without: chips that count as not measured.

    Raises:
        UserError: the device does not have that precision.
    """
    concerned = {device.architecture, *(facts["architecture"] for facts in _facts().values())}
    return _limited(device, precision, frozenset((name, joules[name]) for name in concerned if name in joules), without)


@lru_cache(maxsize=256)
def _limited(
    device: Device, precision: str, known_joules: frozenset[tuple[str, float]], without: frozenset[str]
) -> ProductCurve:
    """Return the curve of ``product_curve``."""
    curve, joules = _scaled(device, precision, without), dict(known_joules)
    if curve.chip == device.name:
        return curve
    facts, measured = _facts()[curve.chip], device.matmul_flops.get(WIDE)
    wide = device.peak(WIDE).value
    if measured is not None and "matmul" in facts:
        return replace(curve, share=curve.share * (measured.value / wide) / (facts["matmul"] / facts["peak"]))
    if device.power is None or device.architecture not in joules or facts["architecture"] not in joules:
        return curve
    power = joules[device.architecture] * device.power.value / wide
    power /= joules[facts["architecture"]] * facts["power"] / facts["peak"]
    return replace(curve, share=min(curve.share * power ** (_UNUSED if power > 1 else 1.0), _MOST / curve.sustained))


def _scaled(device: Device, precision: str, without: frozenset[str]) -> ProductCurve:
    """Return the curve of the nearest chip, scaled by everything but the power."""
    curves = _measured()
    wanted = _SAME_KERNELS.get(precision, precision)
    usable = {chip: of for chip, of in curves.items() if chip not in without}
    chips = {chip: of[wanted] for chip, of in usable.items() if wanted in of} or {c: of[WIDE] for c, of in usable.items()}
    chip = device.name if device.name in chips else min(chips, key=lambda name: _distance(name, device))
    curve, facts = chips[chip], _facts()[chip]
    peak, units = device.peak(precision).value, device.units.value if device.units else 1.0
    if facts["family"] == family(device) and device.cycles:
        feed = curve.feed * (curve.peak / facts["cycles"]) / (peak / device.cycles)
    else:
        feed = curve.feed
    return replace(
        curve,
        precision=precision,
        device=device.name,
        peak=peak,
        units=units,
        bandwidth=device.memory_bandwidth.value,
        feed=feed,
    )


def _distance(chip: str, device: Device) -> tuple[bool, float]:
    facts, cycles = _facts()[chip], device.cycles
    other = facts["peak"] / facts["cycles"]
    return facts["family"] != family(device), abs(math.log(device.peak(WIDE).value / cycles / other)) if cycles else 0.0


@cache
def _read() -> dict[str, Any]:
    text = files("paceline.calibration").joinpath("products.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)  # a TOML of as many numbers takes 40 ms to read
    return found


def _facts() -> Mapping[str, Mapping[str, Any]]:
    """Return the facts of each measured chip: architecture and family, units, cycles of all units, bandwidth, power, and peak
    and measured product in bf16."""
    facts: Mapping[str, Mapping[str, Any]] = _read()["chips"]
    return facts


def source() -> str:
    """Return the source of the measured products."""
    return str(_read()["source"])


@cache
def _measured() -> Mapping[str, Mapping[str, ProductCurve]]:
    """Return the fitted curves by chip and precision."""
    shape = tuple(len(knots) for knots in KNOTS)
    curves: dict[str, dict[str, ProductCurve]] = {}
    for chip, of_chip in _read()["curves"].items():
        for precision, values in of_chip.items():
            table = np.array(values["correction"], dtype=np.float64) / 1000
            numbers = {name: value for name, value in values.items() if name != "correction"}
            facts = _facts()[chip]
            curves.setdefault(chip, {})[precision] = ProductCurve(
                chip=chip,
                device=chip,
                precision=precision,
                units=facts["units"],
                bandwidth=facts["bandwidth"],
                correction=table.reshape(shape) if table.size else table,
                **numbers,
            )
    return curves
