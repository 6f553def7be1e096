"""The empirical constants of the prediction: the share of each datasheet number that a real step reaches.

There are three sets. ``TYPICAL`` is for ordinary framework code; ``LOW`` and ``HIGH`` bound the range that users see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from paceline.calibration.protocols import BARE, Protocol, nccl
from paceline.calibration.uncertainty import Z80, Sigmas
from paceline.errors import UserError, unknown
from paceline.hardware.device import Link
from paceline.strategy.frameworks import FRAMEWORKS, LEVELS, ORDINARY, Framework, SoftwareLevel

ONE_DEVICE, SEVERAL_DEVICES, SEVERAL_NODES = "one device", "several devices", "several nodes"
"""Scales whose constants the file also holds from a fit without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The reached shares of the peak rates, and the fixed costs.

    Attributes:
        level: ``ordinary`` framework code, or code ``tuned`` as for a benchmark: kernels queued ahead or replayed as graphs,
            fused element-wise operations, memory layouts for convolutions.
        matmul_share: best dense matmul / datasheet peak, for devices without a measurement. Measured shares in the catalogue
            lie between 0.51 (MI300X) and 0.97 (Gaudi 2).
        joules, matrix_joules: FLOP/J that a board of an architecture sustains in fp32 and in fp16 with matrix units.
        vector_share, conv_share: share of the best rate of a large, well-shaped product or convolution on ordinary cores.
        matrix_share, matrix_conv_share, attention_share: the same on matrix units, which more often wait for operands. Fused
            attention also computes its exponentials in between.
        attention_kernel: a name of ``attention.KERNELS``. New architectures run the older ones at a smaller share. Empty: the
            usual one of such software.
        feeding: exponent of ``compute.operand_demand``, by which these shares rise for slower matrix units.
        winograd: FLOPs of a 3x3 convolution / multiplications really done on ordinary cores; at most 2.25 with F(2x2, 3x3), 4
            with F(4x4, 3x3) (Lavin and Gray 2016). Transforms take time besides (``convolutions.winograd_gain``).
        depth, matrix_depth: depth k of a product that would take as long as filling and emptying a unit's pipeline.
        small_tile: factor on the rate for every halving of the tile.
        units: number of units of a device that does not state it.
        memory_share: share of the datasheet's bandwidth that a streaming kernel reaches.
        kept_share, kept_calls: share of the bytes and of the launches of memory-bound kernels that remains after fusion.
        element_rate: elements that kernels without products read or write in a cycle of a unit. 2,048 threads with a load each
            on the way, which takes about 570 cycles on an A100, make 3.6; loads of 16 bytes make several times that.
        issue_overhead: further instructions for each multiply-add of a large product on ordinary cores. Units that issue no
            more instructions than they have lanes lose these cycles.
        launch_s: seconds from the end of one kernel's work to the start of the next one's, by kind of device.
        host_s: seconds that the host takes to launch a kernel. It runs ahead, so this bounds a whole pass and not each kernel.
            Measured steps may give the value of a device's own hosts (``correction/host_fit.py``). 0 if graphs are replayed.
        expert_host_s: the same for tuned software that cannot replay graphs, with experts (``prediction/passes/host.py``). It
            equals that of ordinary software, since both are PyTorch's.
        link_share: share of a link's bandwidth that a collective reaches, by kind of link; includes protocol headers.
        concurrent_messages: messages that one rank has in flight in a push or pull; NCCL posts 8 per round, the pairwise
            exchange of Thakur et al. 2005 one.
        latency_factor: factor on the catalogue's latencies.
        codec_cores: CPU cores for the codec of a rank; no device states its number.
        protocols: protocols of the engine's collectives on all devices but CPUs.
        overlap_penalty: share of the time that is lost while exchange and compute both run, because the kernels that move
            messages take multiprocessors and memory bandwidth. With 0 the overlap is free, with 1 it gains nothing.
        straggler_spread: standard deviation of the workers' compute times in one step, relative to their mean.
        sigmas: errors of the predictions with these constants.
        seen: names of the chips, models and scales in the fit. ``without``: the one that was excluded; empty: none.
        time_factor: factor on the seconds of layers and optimizer; 1 unless the rate of one device is known (validation), or
            the software is older.
        device_effects: factors on the seconds of layers and optimizer by device, from what steps of at least two sources took
            beyond these constants (``benchmarks/fit_prediction.py``). They are not in constants fitted without its chip.
        yearly_gain: factor by which such software became faster in a year, until ``NEWEST_YEAR``.
        year: year of the software; 0 is the newest measured one.
        framework: the software (``under``); of constants as fitted, the plain one of their level.
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
    element_rate: float = math.inf
    issue_overhead: float = 0.0
    launch_s: Mapping[str, float]
    link_share: Mapping[str, float]
    concurrent_messages: int
    latency_factor: float
    attention_kernel: str = ""
    kept_calls: float = 1.0
    host_s: float = 0.0
    expert_host_s: float = 0.0
    time_factor: float = 1.0
    device_effects: Mapping[str, float] = field(default_factory=dict)
    yearly_gain: float = 1.0
    year: float = 0.0
    codec_cores: float = 1
    protocols: tuple[Protocol, ...] = BARE
    overlap_penalty: float = 0.0
    straggler_spread: float = 0.0
    sigmas: Sigmas = field(default_factory=Sigmas)
    seen: frozenset[str] = frozenset()
    without: str = ""
    framework: Framework = ORDINARY

    def __hash__(self) -> int:
        """Hash only numbers that differ from fit to fit. Equal constants share them, and the tables cannot be hashed."""
        return hash((self.level, self.matmul_share, self.vector_share, self.memory_share, self.time_factor, self.sigmas))

    def knows(self, workload: str) -> bool:
        """Return whether the constants were fitted on that workload or another size of its design (``mpt-7b``, ``mpt-30b``)."""
        return design(workload) in _designs(self.seen)

    def bandwidth(self, link: Link, devices: int = 1) -> float:
        """Return bytes/s that a collective reaches on a link, for each of ``devices`` of a node that send at once."""
        carried = link.carried.value if link.carried and self.level == "ordinary" else 1.0
        reached = link.reached.value if link.reached else 1.0
        rate = link.bandwidth.value * self.link_share[link.kind] * reached * carried
        return min(rate, link.shared.value / devices) if link.shared else rate

    def latency(self, link: Link) -> float:
        """Return seconds of an empty message over a link, with those before it begins (``Link.start``)."""
        return (link.latency.value + (link.start.value if link.start else 0.0)) * self.latency_factor

    def link_sigma(self, link: Link, estimate: float) -> float:
        """Return the standard deviation of the logarithm of that bandwidth: ``estimate``, and the uncertainty of TCP or of the
        path through a host."""
        carried = link.carried.value if link.carried and self.level == "ordinary" else 1.0
        spread = SOCKETS_SPREAD if link.transport == "TCP" else 1.0
        return math.hypot(estimate, spread * math.log(carried) / Z80, HOST_SIGMA if link.shared else 0.0)

    def factor_on(self, board: str) -> float:
        """Return the factor on the seconds of layers and optimizer on a device, by its board (``Device.board``)."""
        return self.time_factor * self.device_effects.get(board, 1.0)

    def seconds_of(self, other: Efficiency) -> float:
        """Return the ratio of the seconds of every layer to those under ``other``; 0 if the ratio differs between layers."""
        return self.time_factor / other.time_factor if all(getattr(self, n) == getattr(other, n) for n in _KERNELS) else 0.0

    def of_year(self, year: float) -> Efficiency:
        """Return the constants for software of ``year``, such as 2021.5; 0: the newest.

        Submissions to MLPerf became faster from round to round on the same devices. Later software has the same constants,
        and a wider range after the newest release of the fit (``software_progress.py``).

        Raises:
            UserError: no software of this kind existed that year; ordinary software, whose change was not measured.
        """
        if year and not FIRST_YEAR <= year < LAST_YEAR:
            raise UserError(f"software of the year {year:g}", f"give one from {FIRST_YEAR} on, such as 2021.5")
        if year and self.level != "tuned":
            raise UserError(
                f"a year of {self.level} software: how it became faster is not known",
                "give --framework tuned too (in Python framework='tuned')",
            )
        return replace(self, year=year, time_factor=self.time_factor * self._aged(year) / self._aged(self.year))

    def _aged(self, year: float) -> float:
        years = max(0.0, NEWEST_YEAR - year) if year else 0.0
        return math.exp(years * math.log(self.yearly_gain))

    def compiled(self) -> Efficiency:
        """Return the constants under a compiler that fuses chains of element-wise kernels (``torch.compile``).

        The fusion is assumed to leave as many launches and bytes as tuned software has. Tuned software gains nothing (Ansel et
        al. 2024, PyTorch 2, ASPLOS).
        """
        if self.level == "tuned":
            return self
        kept = efficiency("tuned").kept_share
        return replace(self, kept_share=min(self.kept_share, kept), kept_calls=kept)

    def under(self, framework: Framework, *, compiled: bool = False) -> Efficiency:
        """Return the constants of a framework, from those of its level.

        Tuned software whose kernels are not queued ahead launches them as ordinary software does.
        """
        queued = framework.graphs or (compiled and framework.compiled_graphs)
        framework = framework.under_compiler(compiled)
        if framework.plain:
            return self if framework is self.framework else replace(self, framework=framework)
        if self.level == "tuned":
            launched = efficiency("tuned" if queued else "ordinary", self.without)
            self = replace(self, launch_s=launched.launch_s)
        if self.framework is framework:  # adapted before
            return self
        return replace(
            self,
            framework=framework,
            attention_kernel=self.attention_kernel or framework.attention,
        )

    def timed(self, factor: float) -> Efficiency:
        """Return the constants with every second of layers and optimizer multiplied by ``factor``."""
        return replace(self, time_factor=self.time_factor * factor)


SOCKETS_SPREAD = 0.5
"""Width of the range of a network that is named TCP, in parts of that of one whose transport is open. NCCL's sockets reached
0.8 to 1.8 of the carried share: 4 to 6 GB/s of 100 Gb/s (NVIDIA/nccl issue 450), 15 to 31 Gb/s of 32 (issue 209), 41 of 50
(lm-sys/FastChat pull request 9). Chosen in sight of these."""
HOST_SIGMA = 1.0
"""Standard deviation of the logarithm of the bandwidth through a host. Three machines reached 0.3, 0.9 and 3.6 of what one link
carries (``host-path`` in ``hardware/links.toml``)."""


def design(workload: str) -> str:
    """Return the design of a workload, which is its name without the size at the end."""
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
    "attention_kernel",
    "feeding",
    "winograd",
    "depth",
    "matrix_depth",
    "small_tile",
    "units",
    "memory_share",
    "kept_share",
    "element_rate",
    "issue_overhead",
    "kept_calls",
    "device_effects",
    "launch_s",
    "host_s",
    "expert_host_s",
    "framework",
    "year",
)
"""Attributes that determine the seconds of layers, except ``time_factor``; a test checks that the list is complete."""


def _link_share(name: str) -> Mapping[str, float]:
    """Return link shares by kind. ``fabric`` and ``ici`` take those of NVLink, the most similar measured kind."""
    share = assumed(name)
    return MappingProxyType({**share, "fabric": share["nvlink"], "ici": share["nvlink"], "memory": share["loopback"]})


@cache
def _read(name: str) -> dict[str, Any]:
    """Read a file of constants. The reader of TOML is imported only in this function."""
    import tomllib

    return tomllib.loads(files("paceline.calibration").joinpath(name).read_text(encoding="utf-8"))


def assumed(name: str) -> Any:
    """Return an assumed constant, one without a measurement. ``constants.toml`` gives the reason."""
    return _read("constants.toml")["assumed"][name]["value"]


FIRST_YEAR, LAST_YEAR = 2015, 2100
"""Valid years: matrix units, and so mixed precision, exist since 2017."""
NEWEST_YEAR: float = assumed("newest_year")
"""Year of the newest software in the fit of ``yearly_gain``."""


@cache
def efficiency(level: SoftwareLevel = "ordinary", without: str = "") -> Efficiency:
    """Return the fitted efficiencies of a software level.

    Args:
        without: a chip (``Device.chip``), a model by its name here, or a scale to exclude from the fit. The file holds such
            constants for everything in the fit.

    Raises:
        UserError: no such level.
    """
    if level not in LEVELS:
        raise unknown("software level", level, LEVELS)
    data = _read("constants.toml")
    seen = frozenset(data["seen"]["names"])
    changed = _read("constants_held_out.toml")[without] if without in seen else {"shared": {}, level: {}}
    values: dict[str, Any] = {**data["shared"], **data[level], **changed["shared"], **changed[level]}
    host = {**data["ordinary"], **changed.get("ordinary", {})}["host_s"]
    joules, matrix_joules = (MappingProxyType(values.pop(name)) for name in ("joules", "matrix_joules"))
    gpu, cpu = values.pop("launch_s"), values.pop("launch_cpu_s")
    launch = MappingProxyType({"gpu": gpu, "tpu": assumed("tpu_launch_share") * gpu, "accelerator": gpu, "cpu": cpu})
    return Efficiency(
        level=level,
        framework=FRAMEWORKS[level],
        expert_host_s=host if level == "tuned" else 0.0,
        joules=joules,
        matrix_joules=matrix_joules,
        launch_s=launch,
        link_share=_link_share("link_share"),
        **_bound("typical"),
        protocols=nccl(),
        sigmas=Sigmas(**data["sigmas"], **values.pop("sigmas")),
        seen=seen - {without},
        without=without,
        **values,
    )


def _bound(level: Literal["low", "typical", "high"]) -> dict[str, Any]:
    """Return the assumed constants at one end of the range."""
    names = ("concurrent_messages", "latency_factor", "codec_cores", "time_factor")
    return {name: assumed(name)[level] for name in names if level in assumed(name)}


TYPICAL = efficiency()
LOW = replace(TYPICAL, link_share=_link_share("link_share_low"), **_bound("low"))
HIGH = replace(TYPICAL, link_share=_link_share("link_share_high"), **_bound("high"))
CATALOGUE = (LOW, TYPICAL, HIGH)
"""The range that users see without a fitted interval: paced compute, software of others."""
