"""How much of a datasheet number a real step gets: every constant of the prediction that is not physics, in one place.

Three levels: ``TYPICAL`` is what ordinary framework code reaches, ``LOW`` and ``HIGH`` bound the range that users see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from paceline.calibration.protocols import BARE, NCCL, Protocol
from paceline.calibration.uncertainty import Z80, Sigmas
from paceline.errors import unknown
from paceline.hardware.device import Link

SoftwareLevel = Literal["ordinary", "tuned"]
LEVELS: tuple[SoftwareLevel, ...] = ("ordinary", "tuned")
MOST_DEVICES = 8
"""Of a row that the constants were fitted on, all on one node."""
ONE_DEVICE, SEVERAL_DEVICES = "one device", "several devices"
"""Scales that constants were fitted without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of what a resource could do at best, and the fixed costs.

    Attributes:
        level: ``ordinary``, framework code as people write it, or ``tuned``, as for a benchmark: kernels queued ahead or
            replayed as graphs, element-wise work fused into its neighbours, layouts that convolutions like.
        matmul_share: best dense matmul / datasheet peak, where nobody measured it. Measured ones of the catalogue lie
            between 0.51 (MI300X) and 0.97 (Gaudi 2).
        joules, matrix_joules: FLOP/J that a board of an architecture sustains in fp32 and in fp16 with matrix units.
        vector_share, conv_share: what a big, well-shaped product, or convolution, gets of the best rate on ordinary cores.
        matrix_share, matrix_conv_share, attention_share: the same on matrix units, which starve sooner: operands arrive
            slower than they are eaten. Fused attention computes its exponentials in between.
        feeding: how fast those shares rise where matrix units are slow: by this power of how far they are from starving.
        winograd: FLOPs of a 3x3 convolution / multiplications really done on ordinary cores; at most 2.25 with
            F(2x2, 3x3) (Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks).
        depth, matrix_depth: depth k of a product that would take as long as filling and emptying a unit's pipeline.
        small_tile: share of the rate that is left for every halving of the tile.
        units: of a device whose number is not known.
        memory_share: bandwidth that a streaming kernel gets of the datasheet's.
        kept_share: bytes of memory-bound kernels that are still moved; the rest is fused away.
        launch_s: seconds from one kernel to the next at least, by kind of device.
        link_share: bandwidth that a collective gets of a link's, by kind of link; protocol headers included.
        concurrent_messages: messages of one rank in flight at once in a push or pull; NCCL posts 8 a round, the
            pairwise exchange of Thakur et al. 2005 one.
        latency_factor: on the catalogue's latencies.
        codec_cores: cores of a CPU that a rank's codec has; no device says how many it has.
        protocols: of the engine's collectives on anything but a CPU.
        overlap_penalty: share of the time in which exchange and compute work at once that is lost to both: the kernels that
            move messages take multiprocessors and memory bandwidth. 0 hides all of it, 1 none.
        straggler_spread: standard deviation of the workers' compute times in one step, relative to their mean.
        sigmas: what these constants miss. ``seen``: chips, models and scales by name that they were fitted on.
        time_factor: on the seconds of layers and optimizer; 1 unless the rate of one device is known (validation).
    """

    level: SoftwareLevel = "ordinary"
    matmul_share: float
    joules: Mapping[str, float]
    matrix_joules: Mapping[str, float]
    vector_share: float
    conv_share: float
    matrix_share: float
    matrix_conv_share: float
    attention_share: float
    feeding: float
    winograd: float
    depth: float
    matrix_depth: float
    small_tile: float
    units: float
    memory_share: float
    kept_share: float
    launch_s: Mapping[str, float]
    link_share: Mapping[str, float]
    concurrent_messages: int
    latency_factor: float
    time_factor: float = 1.0
    codec_cores: float = 1
    protocols: tuple[Protocol, ...] = BARE
    overlap_penalty: float = 0.0
    straggler_spread: float = 0.0
    sigmas: Sigmas = field(default_factory=Sigmas)
    seen: frozenset[str] = frozenset()

    def __hash__(self) -> int:
        """Of numbers that differ from fit to fit: equal constants have them in common, and the tables cannot be hashed."""
        return hash((self.level, self.matmul_share, self.vector_share, self.memory_share, self.time_factor, self.sigmas))

    def knows(self, workload: str) -> bool:
        """Whether the constants were fitted on that workload or on another size of its design (``mpt-7b``, ``mpt-30b``)."""
        return design(workload) in _designs(self.seen)

    def bandwidth(self, link: Link) -> float:
        """Bytes/s that a collective gets of a link."""
        carried = link.carried.value if link.carried and self.level == "ordinary" else 1.0
        return link.bandwidth.value * self.link_share[link.kind] * carried

    def link_sigma(self, link: Link, estimate: float) -> float:
        """Standard deviation of the logarithm of that: ``estimate``, and what TCP leaves open."""
        carried = link.carried.value if link.carried and self.level == "ordinary" else 1.0
        return math.hypot(estimate, math.log(carried) / Z80)

    def seconds_of(self, other: Efficiency) -> float:
        """By how much layers take longer than under ``other``; 0 where that differs from layer to layer."""
        return self.time_factor / other.time_factor if all(getattr(self, n) == getattr(other, n) for n in _KERNELS) else 0.0

    def timed(self, factor: float) -> Efficiency:
        """These efficiencies with every second of layers and optimizer multiplied by ``factor``."""
        return replace(self, time_factor=self.time_factor * factor)


def design(workload: str) -> str:
    """Of a workload by its name, which ends in the size."""
    return workload.partition("-")[0]


@cache
def _designs(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(design, names))


_KERNELS = (
    "matmul_share",
    "joules",
    "matrix_joules",
    "vector_share",
    "conv_share",
    "matrix_share",
    "matrix_conv_share",
    "attention_share",
    "feeding",
    "winograd",
    "depth",
    "matrix_depth",
    "small_tile",
    "units",
    "memory_share",
    "kept_share",
    "launch_s",
)
"""What the seconds of layers follow from, but for ``time_factor``; a test holds the list complete."""


def _link_share(name: str) -> Mapping[str, float]:
    """Link shares by kind; fabric and ici are taken to be like NVLink, the nearest thing that was measured."""
    share = assumed(name)
    return MappingProxyType({**share, "fabric": share["nvlink"], "ici": share["nvlink"], "memory": share["loopback"]})


@cache
def _read(name: str) -> dict[str, Any]:
    """A file of constants; what reads it is imported only here."""
    import tomllib

    return tomllib.loads(files("paceline.calibration").joinpath(name).read_text(encoding="utf-8"))


def assumed(name: str) -> Any:
    """A constant that no measurement gave; ``constants.toml`` has the reason."""
    return _read("constants.toml")["assumed"][name]["value"]


@cache
def efficiency(level: SoftwareLevel = "ordinary", without: str = "") -> Efficiency:
    """The fitted efficiencies of a software level.

    Args:
        without: a chip (``Device.chip``), a model by its name here or a scale whose measured steps the constants must not
            have seen; constants that were fitted without it are in the file, for what it saw.

    Raises:
        UserError: no such level.
    """
    if level not in LEVELS:
        raise unknown("software level", level, LEVELS)
    data = _read("constants.toml")
    seen = frozenset(data["seen"]["names"])
    changed = _read("constants_held_out.toml")[without] if without in seen else {"shared": {}, level: {}}
    values: dict[str, Any] = {**data["shared"], **data[level], **changed["shared"], **changed[level]}
    joules, matrix_joules = (MappingProxyType(values.pop(name)) for name in ("joules", "matrix_joules"))
    gpu, cpu = values.pop("launch_s"), values.pop("launch_cpu_s")
    launch = MappingProxyType({"gpu": gpu, "tpu": assumed("tpu_launch_share") * gpu, "accelerator": gpu, "cpu": cpu})
    return Efficiency(
        level=level,
        joules=joules,
        matrix_joules=matrix_joules,
        launch_s=launch,
        link_share=_link_share("link_share"),
        **_bound("typical"),
        protocols=NCCL,
        sigmas=Sigmas(**data["sigmas"], **values.pop("sigmas")),
        seen=seen - {without},
        **values,
    )


def _bound(level: Literal["low", "typical", "high"]) -> dict[str, Any]:
    """The assumed constants that bound the range, at one of its ends."""
    names = ("concurrent_messages", "latency_factor", "codec_cores", "time_factor")
    return {name: assumed(name)[level] for name in names if level in assumed(name)}


TYPICAL = efficiency()
LOW = replace(TYPICAL, link_share=_link_share("link_share_low"), **_bound("low"))
HIGH = replace(TYPICAL, link_share=_link_share("link_share_high"), **_bound("high"))
CATALOGUE = (LOW, TYPICAL, HIGH)
"""The range that users see, where no interval was fitted: paced compute, another's software."""
