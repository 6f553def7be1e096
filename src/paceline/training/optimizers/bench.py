"""Measurement of the speed of LARS and LAMB on this machine, compared with the least memory traffic and other libraries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.codecs import native
from paceline.errors import UserError, unknown
from paceline.hardware.probe import cpu_name
from paceline.models import build
from paceline.training.optimizers.kernels import gpu
from paceline.training.optimizers.lamb import LAMB
from paceline.training.optimizers.lars import LARS
from paceline.training.optimizers.layerwise import Layerwise
from paceline.training.optimizers.native import built
from paceline.training.optimizers.other_libraries import (
    COEFFICIENT,
    LAMB_DECAY,
    LARS_DECAY,
    MOMENTUM,
    RATE,
    OptimizerStep,
    peers,
)
from paceline.training.optimizers.published_variants import LAMB_VARIANTS, LARS_VARIANTS

NAMES, DEVICES = ("lars", "lamb"), ("cpu", "cuda")
REPETITIONS, LEAST_REPETITIONS, WARM_UP = 15, 3, 1
BUDGET_S = 30.0
"""An optimizer whose repetitions would take longer gets fewer, not below the least."""
OURS, COPY, ADD, ADAMW = "paceline", "memcpy", "in-place sum", "fused AdamW"
_WORDS = {"lars": 7, "lamb": 10}


@dataclass(frozen=True, kw_only=True)
class OptimizerSpeed:
    """Step time of one optimizer on fp32 tensors, with comparisons; times are medians, in ms.

    Contenders take turns, so that a neighbour on the machine slows all of them; before each turn weights and gradients are
    set back and as many bytes as the parameters have are copied or added, which leaves the same in the cache to each.

    Attributes:
        network: whose parameters' shapes these are.
        device: the processor's or the GPU's name.
        backend: ``native`` with the instruction set, ``triton``, or ``foreach``.
        threads: threads of torch and of the kernels; 1 on a GPU.
        repetitions: timed steps of each contender, after one that warms up.
        floor_words: 4-byte words a parameter that a step moves at least, each read or write counted. LARS 7: w and g for the
            norms, then w, g and v read, w and v written. LAMB 10: w, g, m and v read, m and v written with the norms, then
            w, m and v read and w written; 11 with ``nvlamb``, whose clip reads g once before.
        floor_ms: those words at ``memcpy_gb_per_s``.
        memcpy_gb_per_s: 10**9 bytes a second of a copy of as many bytes as the parameters have, each byte counted twice, as
            read and as written. A processor first fetches memory that it overwrites, which is not counted: a step in place can
            be faster than this floor.
        times_floor: ``ms_per_step / floor_ms``.
        in_place_gb_per_s: rate of y += x, three words an element, all counted: the stricter rate.
        times_in_place_floor: the step over its words at that rate.
        peers: contender -> ms. ``plain foreach`` is LARS or LAMB in torch's foreach functions only;
            ``paceline foreach`` is our path for tensors that the kernels do not support.
        absent: peer -> why it was not measured.
        times_fastest_peer: ms of the fastest peer / ``ms_per_step``.
        fused_adamw_ms: torch's fused AdamW, for orientation: another algorithm, 7 words a parameter.
        spread: contender -> 10th and 90th percentile, ms.
    """

    optimizer: str
    variant: str
    network: str
    tensors: int
    parameters: int
    device: str
    backend: str
    threads: int
    repetitions: int
    ms_per_step: float
    floor_words: int
    floor_ms: float
    memcpy_gb_per_s: float
    times_floor: float
    in_place_gb_per_s: float
    times_in_place_floor: float
    peers: Mapping[str, float]
    absent: Mapping[str, str]
    times_fastest_peer: float
    fused_adamw_ms: float
    spread: Mapping[str, tuple[float, float]]


def measure(
    network: str = "resnet-50",
    which: Sequence[str] | None = None,
    variant: str = "paper",
    threads: int | None = None,
    device: str = "cpu",
    repetitions: int | None = None,
) -> list[OptimizerSpeed]:
    """Measure every named optimizer (None: both) on tensors of a network's shapes.

    Args:
        network: a name of ``paceline.models``.
        variant: variant of every named optimizer; if no optimizer is named, of those that have it.
        threads: torch's number by default.
        device: ``cpu`` or ``cuda``.
        repetitions: ``REPETITIONS`` by default.

    Raises:
        UserError: an unknown network, optimizer, variant or device, no such device here, fewer than one thread.
    """
    todo = list(dict.fromkeys(which)) if which else list(NAMES)
    for name in todo:
        if name not in NAMES:
            raise unknown("optimizer", name, NAMES)
    having = [name for name in todo if variant in (LARS_VARIANTS if name == "lars" else LAMB_VARIANTS)]
    if not which:
        if not having:
            raise unknown("variant", variant, dict.fromkeys([*LARS_VARIANTS, *LAMB_VARIANTS]))
        todo = having
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device here", "leave `device` out to measure the processor")
    if threads is not None and threads < 1:
        raise UserError(f"{threads} threads", "give 1 or more")
    with torch.device("meta"):
        shapes = [p.shape for p in build(network).parameters()]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        room = _Room(shapes, torch.device(device))
        return [_measure(name, variant, network, room, repetitions or REPETITIONS) for name in todo]
    finally:
        torch.set_num_threads(before)


class _Room:
    """Parameters with gradients, their initial values, and a flat buffer for copies."""

    def __init__(self, shapes: Sequence[torch.Size], device: torch.device) -> None:
        self.device = device
        generator = torch.Generator(device).manual_seed(0)
        sizes = [shape.numel() for shape in shapes]
        self.first, gradients = (
            torch.randn(sum(sizes), dtype=torch.float32, generator=generator, device=device).mul_(0.02) for _ in range(2)
        )
        self.target = torch.zeros_like(self.first)
        self._kept = [
            part.view(shape) for flat in (self.first, gradients) for part, shape in zip(flat.split(sizes), shapes, strict=True)
        ]
        self.parameters = [nn.Parameter(kept.clone()) for kept in self._kept[: len(shapes)]]
        for parameter, kept in zip(self.parameters, self._kept[len(shapes) :], strict=True):
            parameter.grad = kept.clone()

    @torch.no_grad()
    def set_back(self) -> None:
        """Restore weights and gradients, because some optimizers write to gradients."""
        now: list[Tensor] = [*self.parameters, *(p.grad for p in self.parameters if p.grad is not None)]
        torch._foreach_copy_(now, self._kept)

    def copy(self) -> None:
        """Copy as many bytes as the parameters have."""
        self.target.copy_(self.first)

    def add(self) -> None:
        """Add as many elements as the parameters have."""
        self.target.add_(self.first)

    def milliseconds(self, call: OptimizerStep) -> float:
        """Return the time of one call on an idle device, by the GPU's clock if there is one, else by the host's."""
        if self.device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(self.device)
            begin.record()
            call()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end))
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)


def _measure(optimizer: str, variant: str, network: str, room: _Room, repetitions: int) -> OptimizerSpeed:
    ours = _own_optimizer(optimizer, room.parameters, variant)
    others, absent = peers(optimizer, room.parameters)
    on_gpu = room.device.type == "cuda"
    kernels = ("triton" if gpu() else "") if on_gpu else (f"native {native.isa()}" if built() else "")
    if kernels:
        others["paceline foreach"] = _own_optimizer(optimizer, room.parameters, variant, foreach=True).step
    adamw = torch.optim.AdamW(room.parameters, lr=RATE, weight_decay=LAMB_DECAY, fused=True)
    taken = _in_turn(room, {OURS: ours.step, **others, ADAMW: adamw.step}, repetitions)
    median = {name: statistics.median(times) for name, times in taken.items()}
    parameters = room.first.numel()
    words = _WORDS[optimizer] + (getattr(ours, "max_grad_norm", None) is not None)
    copied, added = 8 * parameters / median.pop(COPY) / 1e6, 12 * parameters / median.pop(ADD) / 1e6  # GB/s
    floor = 4 * words * parameters / copied / 1e6
    step, fused = median.pop(OURS), median.pop(ADAMW)
    return OptimizerSpeed(
        optimizer=optimizer,
        variant=variant,
        network=network,
        tensors=len(room.parameters),
        parameters=parameters,
        device=torch.cuda.get_device_name(room.device) if on_gpu else cpu_name(),
        backend=kernels or "foreach",
        threads=1 if on_gpu else torch.get_num_threads(),
        repetitions=len(taken[OURS]),
        ms_per_step=step,
        floor_words=words,
        floor_ms=floor,
        memcpy_gb_per_s=copied,
        times_floor=step / floor,
        in_place_gb_per_s=added,
        times_in_place_floor=step / floor * added / copied,
        peers=median,
        absent=absent,
        times_fastest_peer=min(median.values()) / step,
        fused_adamw_ms=fused,
        spread={name: _spread(times) for name, times in taken.items()},
    )


def _own_optimizer(optimizer: str, parameters: Sequence[Tensor], variant: str, foreach: bool | None = None) -> Layerwise:
    if optimizer == "lamb":
        return LAMB(parameters, RATE, weight_decay=LAMB_DECAY, variant=variant, foreach=foreach)
    return LARS(parameters, RATE, MOMENTUM, LARS_DECAY, trust_coefficient=COEFFICIENT, variant=variant, foreach=foreach)


def _in_turn(room: _Room, calls: Mapping[str, OptimizerStep], repetitions: int) -> dict[str, list[float]]:
    """Time each call once a round, and a copy or a sum before it. Returns milliseconds by name."""
    taken: dict[str, list[float]] = {name: [] for name in (*calls, COPY, ADD)}
    began = time.perf_counter()
    for repetition in range(WARM_UP + repetitions):
        for i, (name, call) in enumerate(calls.items()):
            room.set_back()
            what, move = ((COPY, room.copy), (ADD, room.add))[(repetition + i) % 2]
            moved, stepped = room.milliseconds(move), room.milliseconds(call)
            if repetition >= WARM_UP:
                taken[what].append(moved)
                taken[name].append(stepped)
        if repetition + 1 >= WARM_UP + LEAST_REPETITIONS and time.perf_counter() - began > BUDGET_S:
            break
    return taken


def _spread(times: Sequence[float]) -> tuple[float, float]:
    if len(times) < 2:
        return times[0], times[0]
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return tenths[0], tenths[-1]
