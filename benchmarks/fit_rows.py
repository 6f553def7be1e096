"""Published measurements as points of the fit: seconds as a function of the constants, and as measured.

A point is a group of rows of one set, model, device, precision, software and scale. Only the device's own work follows the
constants that are fitted. What else a step waits for (exchanges, bubbles of a pipeline, the host) comes from the whole model
at the constants of the moment (``Point.at``), and rows in which that is more than ``MOST_WAIT`` of the step are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np

from paceline import hardware
from paceline.array_types import Array, Bools
from paceline.calibration.constants import (
    LEVELS,
    ONE_DEVICE,
    SEVERAL_DEVICES,
    SEVERAL_NODES,
    Efficiency,
    SoftwareLevel,
    efficiency,
)
from paceline.csv_rows import read
from paceline.hardware import Device
from paceline.prediction import Predictor
from paceline.prediction.mesh.mesh_step import MeshStep, mesh_step
from paceline.prediction.passes.compute import layer_seconds, operation_seconds, optimizer_seconds
from paceline.prediction.passes.convolutions import is_channels_last
from paceline.prediction.passes.operation_table import CONV, MATMUL, MEMORY, OperationTable, operation_table
from paceline.prediction.step.costs import slowest
from paceline.prediction.step.step_model import Step
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.validation.case import Case
from paceline.validation.sets import adapter

FILES = {
    "neusight": "neusight_model_latency.csv",
    "lambda": "lambda_single_node.csv",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100.csv",
    "mlperf": "mlperf_training.csv",
    "mlperf v2.0 to v3.1": "mlperf_training_v2_v3.csv",
    "llmfoundry": "llmfoundry_mpt_fsdp.csv",
    "megatron_bridge": "megatron_bridge_h100.csv",
    "dgxc": "nvidia_dgxc_h100_bf16.csv",
    "megatron_bridge GB200": "megatron_bridge_gb200.csv",
    "mlperf v4.0 and v4.1": "mlperf_training_v4.csv",
    "published SimuMax": "simumax_b200.csv",
    "published InternEvo": "internevo_a100.csv",
    "published NeMo Megatron launcher": "nemo_megatron_launcher_a100.csv",
}
"""Files by set; what follows the first word says which rows of the set."""
HOST_FILES = {"pollux_sia": "pollux_sia_dataparallel.csv", "vtrain": "vtrain_megatron_a100.csv"}
KERNELS = "neusight_ops_fp32.csv"
MOST_DEVICES = {"mlperf": 8, "llmfoundry": 8, "megatron_bridge": 1024, "dgxc": 2048, "published": 1024}
"""Most devices of a set's rows, where not 1. Other sets' rows on several nodes are kept to test how steps scale."""
MOST_WAIT = 0.35
"""Largest share of a step that is not the device's own work."""
LEAST_S = 3e-4
"""Single kernels are timed with the launch, which a queue of them hides: shorter ones are left out."""
EVERY, MOST = 20, 8
"""Single kernels and steps of a group that are kept at most, evenly over the file."""


@dataclass(frozen=True)
class Point:
    """Rows of one group.

    ``chip``, ``model`` and ``scales`` are the names by which it is held out; a single kernel has but the first. ``level`` is
    the software's; kernels launched one by one before graphs of them are tuned ones all the same. ``kind``: of device.
    ``plain_conv``: share of the time in convolutions on ordinary cores.

    Attributes:
        work: seconds of the device's own work.
        longer: factor on that from the bubbles of a pipeline. ``beside``: seconds that are added for all other waits.
        moved_by: which of the fitted constants move ``work``; None: any may.
    """

    group: tuple[str, ...]
    level: SoftwareLevel
    work: Callable[[Mapping[SoftwareLevel, Efficiency]], Array]
    measured: Array
    chip: str
    model: str = ""
    scales: tuple[str, ...] = ()
    kind: str = "gpu"
    plain_conv: float = 0.0
    cases: tuple[Case, ...] = ()
    longer: Array | float = 1.0
    beside: Array | float = 0.0
    moved_by: Bools | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """By which it is held out."""
        return tuple(name for name in (self.chip, self.model, *self.scales) if name)

    def predict(self, levels: Mapping[SoftwareLevel, Efficiency]) -> Array:
        """Seconds of each row with these constants."""
        return self.work(levels) * self.longer + self.beside

    def at(self, levels: Mapping[SoftwareLevel, Efficiency]) -> Point:
        """The same with the waits that the whole model has with these constants. Single kernels and networks without an
        exchange have none."""
        if not self.cases or not updated(self.group[0]):
            return self
        own = self.work(levels)
        longer, beside = np.ones_like(own), np.zeros_like(own)
        for row, case in enumerate(self.cases):
            step = whole_step(case, constants_of(case, levels))
            bubble = step.exposed.get("pipeline bubble", 0.0)
            longer[row] = 1 + bubble / (step.seconds - bubble)
            beside[row] = step.seconds - own[row] * longer[row]
        return replace(self, longer=longer, beside=beside)


def points(folder: Path) -> list[Point]:
    """Everything that the fit reads."""
    return [*kernels(folder / KERNELS), *(point for name, file in FILES.items() for point in steps(name, folder / file))]


def host_cases(folder: Path) -> list[Case]:
    """Steps of ordinary software in which small micro batches show the host: of each network on a device, evenly over the file.
    NCF is left out, whose samples are drawn on the host too."""
    chosen: list[Case] = []
    for name, file in HOST_FILES.items():
        reader = adapter(name)
        groups: dict[tuple[str, str], list[Case]] = {}
        for row in read(folder / file, (*reader.texts, *reader.numbers)):
            case = reader.read(row)
            if not isinstance(case, Case) or case.keys.nodes > 1 or case.workload.name == "ncf":
                continue
            if case.keys.devices == 1 or not case.setting.strategy.parallelism.whole:
                groups.setdefault((case.keys.model, case.keys.device), []).append(case)
        chosen += [case for group in groups.values() for case in group[:: ceil(len(group) / MOST)]]
    return chosen


def kernels(path: Path) -> Iterator[Point]:
    """Single kernels in fp32 without TF32, by kind and device."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if float(row["latency_ms"]) >= LEAST_S * 1e3:
                groups.setdefault((row["op"], row["gpu"]), []).append(row)
    for (kind, gpu), rows in groups.items():
        chosen = rows[:: ceil(len(rows) / EVERY)]
        device, table = hardware.device(gpu), _kernel_table(kind, chosen)
        predict = partial(_kernel_seconds, table=table, device=device)
        yield Point(("kernels", kind, device.name), "ordinary", predict, _column(chosen, "latency_ms") / 1e3, device.chip)


def _column(rows: Sequence[Mapping[str, str]], name: str) -> Array:
    return np.array([float(row[name] or 0) for row in rows])


def _kernel_table(kind: str, rows: Sequence[Mapping[str, str]]) -> OperationTable:
    count, ones = len(rows), np.ones(len(rows))
    batch, m, n, k, width = (_column(rows, name) for name in ("B", "M", "N", "K", "H"))
    window = ones
    if kind == "conv":
        inputs, outputs, size, side = (_column(rows, f"conv_{name}") for name in ("in", "out", "kernel", "input_hw"))
        m, n, k, window = batch * side**2, outputs, inputs * size**2, size**2
        moved, batch = 4 * (batch * side**2 * (inputs + outputs) + inputs * outputs * size**2), ones
    else:
        moved = 4 * batch * (m * k + k * n + m * n) if kind in ("linear", "bmm") else 8 * batch * width
    flops = 2 * batch * m * n * k if kind in ("linear", "bmm", "conv") else 0 * ones
    return OperationTable(
        kind=np.full(count, {"linear": MATMUL, "bmm": MATMUL, "conv": CONV}.get(kind, MEMORY)),
        calls=ones,
        flops=flops,
        bytes=moved,
        fixed_bytes=0 * ones,
        sizes=(sizes := np.stack([m, n, k, batch], axis=1) * (flops > 0)[:, None]),
        grows=np.zeros((count, 4)),
        joined=sizes,
        window=window,
        causal=0 * ones,
        sliding=0 * ones,
        autocast=np.zeros(count, dtype=np.bool_),
        narrow=np.zeros(count, dtype=np.bool_),
        shares=np.zeros(count, dtype=np.bool_),
        eager=np.zeros(count, dtype=np.bool_),
        ragged=np.zeros(count, dtype=np.bool_),
        row=np.arange(count),
        layer=np.arange(count),
        backward=np.zeros(count, dtype=np.bool_),
        layers=count,
    )


def _kernel_seconds(levels: Mapping[SoftwareLevel, Efficiency], table: OperationTable, device: Device) -> Array:
    seconds = operation_seconds(table, 1, "fp32", device, levels["ordinary"])
    return seconds.flops + seconds.bytes + seconds.launch


def steps(name: str, path: Path) -> Iterator[Point]:
    """The rows of a set in which the device's own work dominates."""
    reader = adapter(name.split()[0])
    outcomes = [reader.read(row) for row in reader.joined(read(path, (*reader.texts, *reader.numbers)))]
    most = MOST_DEVICES.get(name.split()[0], 1)
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in outcomes:
        if isinstance(case, Case) and case.step_s and case.keys.devices <= most and (case.keys.nodes == 1 or most > 8):
            own = (name, case.keys.model, case.keys.device, case.precision, case.software, scales(case)[-1])
            groups.setdefault(own, []).append(case)
    for group, all_cases in groups.items():
        cases = [case for case in all_cases if not updated(name) or waited(case) <= MOST_WAIT]
        cases = cases[:: ceil(len(cases) / MOST) or 1]
        if not cases:
            continue
        device, model = cases[0].setting.cluster.device, cases[0].workload.name
        level: SoftwareLevel = "ordinary" if cases[0].software == "ordinary" else "tuned"
        busiest = [_busiest(case) for case in cases]
        workers = [case.setting.strategy.world_size for case in cases]
        work = partial(_step_seconds, cases=busiest, table=_together(busiest), workers=workers, trained=updated(name))
        measured = np.array([c.step_s for c in cases])
        conv = _plain_conv(cases[0], level)
        yield Point(group, level, work, measured, device.chip, model, scales(cases[0]), device.kind, conv, tuple(cases))


def updated(name: str) -> bool:
    """Whether the rows of a set are whole training steps."""
    return name not in ("neusight", "kernels")


def scales(case: Case) -> tuple[str, ...]:
    """The scales by which a row is held out."""
    if case.keys.devices == 1:
        return (ONE_DEVICE,)
    return (SEVERAL_DEVICES, SEVERAL_NODES) if case.keys.nodes > 1 else (SEVERAL_DEVICES,)


def constants_of(case: Case, levels: Mapping[SoftwareLevel, Efficiency]) -> Efficiency:
    """The constants of its software."""
    own = levels["ordinary" if case.software == "ordinary" else "tuned"]
    if case.software == "eager":
        own = replace(own, launch_s=levels["ordinary"].launch_s)
    own = own.of_year(case.year)
    return replace(own, attention_kernel=case.attention) if case.attention else own


def whole_step(case: Case, constants: Efficiency) -> Step | MeshStep:
    """The step as the model has it with these constants."""
    setting, workload = case.setting, case.workload
    cluster, strategy = setting.cluster, setting.strategy.settled(workload, setting.cluster)
    model = Predictor(constants=constants).model(workload)
    divided = not strategy.parallelism.whole
    return mesh_step(model, cluster, strategy) if divided else model.step(cluster, strategy)


def waited(case: Case) -> float:
    """Share of the step that is not the device's own work, with the shipped constants."""
    step = whole_step(case, constants_of(case, _shipped()))
    own = sum(step.exposed[name] for name in ("compute", "memory bandwidth", "launch overhead"))
    return 1 - own / step.seconds


def _shipped() -> dict[SoftwareLevel, Efficiency]:
    return {level: efficiency(level) for level in LEVELS}


def _busiest(case: Case) -> Case:
    """The part of the network that the busiest device has, as a case of its own."""
    if case.setting.strategy.parallelism.whole:
        return case
    step = whole_step(case, constants_of(case, _shipped()))
    assert isinstance(step, MeshStep)
    own = max(step.steps, key=lambda stage: stage.seconds)
    return replace(case, workload=own.workload, setting=replace(case.setting, strategy=own.strategy))


def _together(cases: Sequence[Case]) -> OperationTable:
    """The operations of steps as one table: sizes, FLOPs and bytes of the whole micro batch; ``row`` says whose each is."""
    parts, counts = [operation_table(case.workload) for case in cases], []
    for case, part in zip(cases, parts, strict=True):
        strategy = case.setting.strategy
        again = 1 + (strategy.parallelism.recompute.name == "full") * ~part.backward
        counts.append(strategy.parallelism.micro_batches * np.bincount(part.row, again, len(part.kind)))
    owner = np.repeat(np.arange(len(cases)), [len(part.kind) for part in parts])
    each = np.concatenate(counts)
    batch = np.array([case.setting.strategy.micro_batch_size for case in cases], dtype=float)[owner]

    def column(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    return OperationTable(
        kind=column("kind"),
        calls=column("calls") * each,
        flops=column("flops") * batch * each,
        bytes=(column("bytes") * batch + column("fixed_bytes")) * each,
        fixed_bytes=0 * each,
        sizes=column("sizes") * np.where(column("grows") > 0, batch[:, None], 1.0),
        grows=np.zeros((len(each), 4)),
        joined=column("joined") * np.where(column("grows") > 0, batch[:, None], 1.0),
        window=column("window"),
        causal=column("causal"),
        sliding=column("sliding"),
        autocast=column("autocast"),
        narrow=column("narrow"),
        shares=column("shares"),
        eager=column("eager"),
        ragged=column("ragged"),
        row=owner,
        layer=owner,
        backward=np.zeros(len(each), dtype=np.bool_),
        layers=len(cases),
    )


def _step_seconds(
    levels: Mapping[SoftwareLevel, Efficiency],
    cases: Sequence[Case],
    table: OperationTable,
    workers: Sequence[int],
    trained: bool,
) -> Array:
    """Seconds of the work of the slowest of the devices in steps, with their optimizer's if they have one."""
    known: dict[tuple[object, ...], Efficiency] = {}
    softwares = [(case.software, case.year, case.attention) for case in cases]
    for case, software in zip(cases, softwares, strict=True):
        known[software] = known.get(software) or constants_of(case, levels)
    own = [known[software] for software in softwares]
    e, device = own[0], cases[0].setting.cluster.device
    last = is_channels_last(cases[0].workload, cases[0].setting.strategy.memory_format, e.level)
    seconds = operation_seconds(table, 1, cases[0].precision, device, e, channels_last=last)
    work = np.bincount(table.row, seconds.flops + seconds.bytes + seconds.launch, len(cases))
    work = work * np.array([e.time_factor * slowest(count, e) for e, count in zip(own, workers, strict=True)])
    return work + np.array([_update(case, device, e) for case, e in zip(cases, own, strict=True)]) if trained else work


def _plain_conv(case: Case, level: SoftwareLevel) -> float:
    """Share of the work in convolutions on ordinary cores."""
    setting = case.setting
    passes = layer_seconds(
        case.workload, setting.strategy.micro_batch_size, case.precision, setting.cluster.device, efficiency(level)
    )
    return sum(seconds.plain_conv for seconds in passes) / sum(float(seconds.total.sum()) for seconds in passes)


def _update(case: Case, device: Device, e: Efficiency) -> float:
    strategy = case.setting.strategy
    owned = case.workload.num_parameters / (1 if strategy.parallelism.sharding.name == "ddp" else strategy.world_size)
    return sum(optimizer_seconds(OPTIMIZERS[strategy.optimizer], round(owned), len(case.workload.parameters), device, e))
