"""Published measurements of any source in common columns: one adapter for all.

Columns: source, model, device, num_devices, num_nodes, interconnect, global_batch, micro_batch, seq_len, precision, framework,
tp, pp, cp, ep, dp_sharding, recompute, other_options, metric, value; ``date``, ``peer_prediction`` and ``raw`` may follow. An
empty cell was not stated. A row has one measured quantity (``metric``, ``value``). Rows that differ in it alone are of one run:
its memory joins its step. ``peer_prediction`` is what another predictor published for the row. A row that cannot be read or
modelled is left out with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction import Predictor
from paceline.prediction.passes.recompute import block_names
from paceline.strategy.sharding import DDP, SHARDINGS
from paceline.validation.case import Case, Keys, Setting, Skip, Software
from paceline.validation.sets import case_builders
from paceline.validation.sets.published import machines, options
from paceline.validation.sets.published.frameworks import attention, framework, optimizer, precision, software, year
from paceline.validation.sets.published.quantities import Measured, is_memory, measured
from paceline.validation.sets.published.vision import memory_format
from paceline.validation.sets.published.workloads import LENGTH, workload
from paceline.workload import Workload

TEXTS = (
    "source",
    "model",
    "device",
    "num_devices",
    "num_nodes",
    "interconnect",
    "global_batch",
    "micro_batch",
    "seq_len",
    "precision",
    "framework",
    "tp",
    "pp",
    "cp",
    "ep",
    "dp_sharding",
    "recompute",
    "other_options",
    "metric",
    "value",
)
NUMBERS = ()
UNEQUAL = "sequences of unknown length"
SPREAD = "layers spread over the devices, one of which computes at a time"
DISAGREES = "step time and FLOPs do not agree"
TOO_FAST = "faster than the chip's peak"
AGREES = 1.25
"""Factor that FLOPs published with a step may be from those of the network."""
_LACKING = (case_builders.MESH, case_builders.NO_BATCH, LENGTH)
"""Reasons of rows that leave out what a prediction needs."""
_OF_RUN = ("metric", "value", "peer_prediction", "raw")
"""Columns in which rows of one run differ."""


def joined(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the memory of a run in the row of its time; rows of memory without a time stay."""
    runs: dict[tuple[str, ...], Row] = {}
    out: list[Row] = []
    for row in rows:
        if not is_memory(row.text("metric")):
            runs.setdefault(_run(row), row)
    memory: dict[int, Row] = {}
    for row in rows:
        of = runs.get(_run(row))
        if is_memory(row.text("metric")) and of is not None and of.number not in memory:
            memory[of.number] = row
    taken = {row.number for row in memory.values()}
    for row in rows:
        if row.number in taken:
            continue
        if own := memory.get(row.number):
            row = replace(row, values={**row.values, "memory_metric": own.text("metric"), "memory": own.text("value"),
                                       "memory_peer": own.text("peer_prediction")})  # fmt: skip
        out.append(row)
    return out


def _run(row: Row) -> tuple[str, ...]:
    return tuple(value for column, value in row.values.items() if column not in _OF_RUN)


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    devices = options.leading(row.text("num_devices")) or 1
    keys = Keys(row.text("model"), row.text("device"), devices, 1, _owner(row), row.text("framework"))
    try:
        device = machines.device(row)
    except UserError as error:
        return Skip(keys, error.message)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE, good=bool(row.text("device")))
    keys = replace(keys, device=device.name)
    try:
        cluster = machines.cluster(row, device)
    except UserError as error:
        return Skip(keys, error.message, good=False)
    keys = replace(keys, devices=cluster.world_size, nodes=cluster.num_nodes)
    value = measured(row.text("metric"), row.text("value"), cluster.world_size)
    if value is None or (value.kind != "memory" and options.sequence(row) == 0):  # a time of unequal sequences tells nothing
        unusable = case_builders.NO_VALUE if value is None else UNEQUAL
        value = measured(row.text("memory_metric"), row.text("memory"), 1) if row.text("memory") else None
    if value is None:
        return Skip(keys, unusable, good=False)
    if "device_map" in row.text("dp_sharding") and cluster.world_size > 1:
        return Skip(keys, SPREAD)
    try:
        return _case(row, keys, cluster, value)
    except UserError as error:
        return Skip(keys, error.message, good=error.message not in _LACKING)


def _owner(row: Row) -> str:
    """Return the repository that published the row."""
    return row.text("source").split(" ")[0]


def _case(row: Row, keys: Keys, cluster: Cluster, value: Measured) -> Case | Skip:
    """Return the case of a row with a known device. Raises UserError where it cannot be modelled."""
    mesh = options.mesh(row)
    seq_len = options.sequence(row, value.kind == "memory")
    network = workload(row, seq_len, mesh["pipeline"])
    if network is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    number_format, origin = precision(row, cluster.device, network)
    if not number_format:
        return Skip(keys, case_builders.PRECISION, good=False)
    if number_format not in cluster.device.precisions:
        return Skip(keys, f"{number_format} on a device without it")
    setting = _setting(row, cluster, network, mesh, number_format)
    step_s = _seconds(row, value, setting, network)
    if not _agrees(row, step_s, setting, network):
        return Skip(keys, DISAGREES, good=False)
    if step_s and not _possible(step_s, setting, network):
        return Skip(keys, TOO_FAST, good=False)
    published, memory_published = _peers(row, value, setting, network)
    joint = measured(row.text("memory_metric"), row.text("memory"), 1) if row.text("memory") else None
    memory = value if value.kind == "memory" else joint
    level = software(row, number_format)
    return Case(
        keys=keys,
        workload=network,
        setting=setting,
        software=level,
        framework=framework(row).name,
        attention=attention(row, cluster.device),
        overlap=options.overlap(row),
        step_s=step_s,
        year=year(row, level),
        published=published,
        memory_bytes=memory.value if memory else options.memory_in(row.text("raw"), keys.devices),
        memory_counts=_counts(row, memory),
        held_bytes=_held(row, setting, network),
        published_memory=memory_published,
        precision_from=origin,
    )


CORES = 2
"""NeuronCores of a Trainium chip (AWS, Trn1 architecture). Tables of Neuron count a core as a device of the mesh."""
SEQUENCE_PARALLEL_SINCE = "2022-05"
"""Month of sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198)."""
_PER_DEVICE = "per_device_batch_size"
"""MaxText's batch of each device, also of those that divide a layer."""
_BATCH_BEHIND_MICRO = r",{micro},(\d+),"
"""Place of the global batch in rows of AWS Neuron's tables."""


def _setting(row: Row, cluster: Cluster, network: Workload, mesh: dict[str, Any], number_format: str) -> Setting:
    """Return the job. Raises UserError where its numbers do not agree."""
    n = cluster.world_size
    by_core = "NeuronCores" in row.text("other_options") and cluster.device.name == "Trainium"
    each = CORES if by_core and mesh["tensor"] == 1 else 1
    if by_core:
        mesh = mesh | {"tensor": max(1, mesh["tensor"] // CORES)}
    if _PER_DEVICE in row.text("other_options"):
        each = mesh["tensor"] * mesh["context"]
    replicas = max(1, n // (mesh["tensor"] * mesh["pipeline"] * mesh["context"]))
    batch, micro = _batches(row, replicas, each, by_core)
    usual = framework(row)
    alone = replicas * mesh["context"] == 1 and not usual.name  # DeepSpeed has the hooks of a sharding on one device too
    sharding = DDP.name if alone else options.sharding(row) or usual.sharding
    choices: dict[str, Any] = {
        **mesh,
        "sharding": sharding,
        "recompute": options.recompute(row) or "none",
        "offload": options.offload(row),
        "memory_format": memory_format(row),
        "sequence": mesh["tensor"] > 1 and options.sequence_parallel(row, SEQUENCE_PARALLEL_SINCE),
        **options.expert_exchange(row, network, replicas * mesh["context"], mesh["expert"]),
    }
    if SHARDINGS[sharding].shares_out:
        choices["shard_devices"] = options.sharing_devices(row, replicas * mesh["context"], cluster.devices_per_node)
    share = options.recomputed_share(row)
    if share < 1 and choices["recompute"] != "none":
        choices["recompute"] = "full"
        choices["recompute_layers"] = max(1, round(share * len(block_names(network)) / mesh["pipeline"]))
    if options.wide_gradients(row) and SHARDINGS[sharding].shares_out:
        choices["gradient_bits"] = 32

    def setting(**more: Any) -> Setting:
        return case_builders.divided(
            cluster, network, batch, micro, number_format, optimizer=optimizer(row, bool(network.tokens)), **choices | more
        )

    made = setting()
    level = software(row, number_format)
    if not network.tokens or _fits(made, network, level):
        return made
    shared = {} if options.sharding(row) or replicas == 1 else {"sharding": usual.needed}
    again = {} if options.recompute(row) else {"recompute": "full"}
    for more in filter(None, (shared, again, shared | again)):  # it ran, so that it fitted
        if _fits(made := setting(**more), network, level):
            break
    return made


def _batches(row: Row, replicas: int, each: int, by_core: bool) -> tuple[int, int]:
    """Return the samples of a step and of a micro batch. Raises UserError where they are not stated.

    With a local batch, each of the rounds of accumulation empties the pipeline, so that one round is the step.

    Args:
        each: micro batches as stated in one of a replica: those of a device's cores, or of the devices that divide a layer.
        by_core: the mesh counts cores of a device.
    """
    micro, batch = options.number(row, "micro_batch"), options.number(row, "global_batch")
    accumulation, local = options.number(row, "accumulation"), options.written(row.text("other_options"), "local_batch")
    if batch is None and by_core and micro and (found := re.search(_BATCH_BEHIND_MICRO.format(micro=micro), row.text("raw"))):
        batch = int(found[1])
    micro = micro and micro * each
    if local is not None:
        batch = local * replicas * (1 if _rounds(row) > 1 else accumulation or 1)
    if micro is None and batch is not None and accumulation is not None and batch % (accumulation * replicas) == 0:
        micro = batch // (accumulation * replicas)
    if micro is None and batch is not None and accumulation is None and (options.number(row, "pp") or 1) == 1:
        micro = batch // replicas  # nothing is accumulated where nothing says so
    if not micro:
        raise UserError(case_builders.NO_BATCH)
    return batch or micro * replicas * (accumulation or 1), micro


def _rounds(row: Row) -> int:
    """Return how often a step fills and empties its pipeline."""
    if options.written(row.text("other_options"), "local_batch") is None or (options.number(row, "pp") or 1) == 1:
        return 1
    return options.number(row, "accumulation") or 1


def _fits(made: Setting, network: Workload, level: Software) -> bool:
    """Return whether a job fits in the memory of its devices, with software of a ``level``."""
    needed = (
        Predictor(framework="ordinary" if level == "ordinary" else "tuned")
        .step(network, made.cluster, made.strategy)
        .memory_bytes
    )
    return needed <= made.cluster.device.memory.value


def _seconds(row: Row, value: Measured, setting: Setting, network: Workload) -> float:
    """Return the seconds of an optimizer step; 0 for a row of memory alone."""
    strategy = setting.strategy
    batch = strategy.global_batch_size
    if value.kind == "memory":
        return 0.0
    if value.kind == "step":
        return value.value / _rounds(row)
    if value.kind == "micro_step":
        return value.value * strategy.parallelism.micro_batches
    if value.kind == "flops":
        whole = strategy.parallelism.recompute.whole_blocks and "hardware" in row.text("recompute").casefold()
        return _at_rate(value.value, setting, network, AGAIN if whole else 1.0)
    if value.kind == "utilisation":
        peak = setting.cluster.device.peak(strategy.precision).value
        whole = strategy.parallelism.recompute.whole_blocks and "hfu" in row.text("metric").casefold()
        return _at_rate(value.value * peak, setting, network, AGAIN if whole else 1.0)
    tokens = options.sequence(row) or network.tokens
    if value.kind == "tokens" and not tokens:
        raise UserError("tokens of a network without sequences")
    return batch * (tokens if value.kind == "tokens" else 1) / value.value


def _agrees(row: Row, step_s: float, setting: Setting, network: Workload) -> bool:
    """Return whether the FLOPs that are published with a step are those of the network and its batch."""
    said = re.search(r"TFLOP?s:? ([0-9.]+)", row.text("other_options"), re.IGNORECASE)
    if said is None or not step_s:
        return True
    counted = (_at_rate(float(said[1]) * 1e12, setting, network, again) / _rounds(row) for again in (1.0, AGAIN))
    return any(1 / AGREES <= seconds / step_s <= AGREES for seconds in counted)


def _possible(step_s: float, setting: Setting, network: Workload) -> bool:
    """Return whether the fastest rate of the devices suffices for the FLOPs of a step."""
    peaks = setting.cluster.device.peak_flops
    fastest = max(peaks.values(), key=lambda peak: peak.value)
    fewer = WINOGRAD if fastest is peaks.get("fp32") else 1.0
    return step_s >= _at_rate(fastest.value * fewer, setting, network, 1.0)


WINOGRAD = 2.25
"""FLOPs of a convolution over those that F(2x2, 3x3) computes (Lavin and Gray 2015, arXiv:1509.09308, section 4.1)."""
AGAIN = 4 / 3
"""FLOPs of a step that computes its forward pass twice, over those of the model."""


def _at_rate(flops_per_s: float, setting: Setting, network: Workload, again: float) -> float:
    """Return the seconds of a step at a rate of each device."""
    flops = setting.strategy.global_batch_size * network.flops_per_sample * again
    return flops / (flops_per_s * setting.cluster.world_size)


def _held(row: Row, setting: Setting, network: Workload) -> float:
    """Return bytes of a device that the row's software holds in addition to those of its strategy."""
    mesh = setting.strategy.parallelism
    if not (options.holds_whole_gradients(row) and mesh.sharding.weights and mesh.micro_batches > 1):
        return 0.0
    return float(BYTES_PER_ELEMENT[setting.strategy.precision] * (network.frozen + network.num_parameters))


_SEGMENT = 2 * 2**20
"""Bytes of which the memory that PyTorch reserves is a multiple (``CUDACachingAllocator``, ``kSmallBuffer``)."""
_ALLOCATED = (options.LITGPT,)
"""Sources that print ``torch.cuda.max_memory_allocated`` (LitGPT, finetune/lora.py)."""


def _counts(row: Row, memory: Measured | None) -> Literal["allocated", "device"]:
    """Return what the memory of a row counts: bytes to the last digit are those of tensors."""
    metric = row.text("memory_metric") or row.text("metric")
    exact = memory is not None and "bytes" in metric and memory.value % _SEGMENT
    return "allocated" if "alloc" in metric or exact or _owner(row) in _ALLOCATED else "device"


def _peers(row: Row, value: Measured, setting: Setting, network: Workload) -> tuple[dict[str, float], dict[str, float]]:
    """Return what another predictor published for the row: seconds and bytes by its name."""
    name = _owner(row).rpartition("/")[2]
    peer = measured(row.text("metric"), row.text("peer_prediction"), setting.cluster.world_size)
    memory = measured(row.text("memory_metric"), row.text("memory_peer"), 1) if row.text("memory_peer") else None
    if peer and peer.kind == "memory":
        peer, memory = None, peer
    return ({name: _seconds(row, peer, setting, network)} if peer else {}), ({name: memory.value} if memory else {})
