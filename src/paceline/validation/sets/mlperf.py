"""MLPerf Training results in ``mlperf_training.csv``: a row for each system and benchmark.

Only rows whose throughput was read from the steps or from the slope between evaluations count; the runs are tuned, and from
round v1.0 on replay graphs of kernels. Half of a BERT sequence of 512 tokens is padding, which submissions do not compute
(Krell et al. 2021, arXiv:2107.02027, section 2); the Transformer's batch is in tokens, about 27 to a sentence of WMT
English-German on either side. A sample of RNN-T is an utterance, of R-GAT a paper, of FLUX.1 an image,
of DLRM a user and an item.

The columns do not say in which precision a row ran; the submissions' files do. Language models run in fp8 where the device has
it (NVIDIA, training_results_v3.1, gpt3, config_fp8.sh), on Gaudi 2 from round v3.1 on (Intel-HabanaLabs,
training_results_v3.1, gpt3, run_gpt.sh: ``--use-fp8-transformer-engine``). BERT does on Hopper and later with many samples a
device, where NVIDIA's files ask for Transformer Engine (``--use_transformer_engine2``: 48 and 36 a device;
training_results_v2.1, config_DGXH100_1x8x48x1_pack.sh, and v3.1), and not with few (2 and 3; v3.1, bert, config_DGXH100_*.sh).
Scales are those of the steps before. All others run at half precision. A division into tensors and stages is sequence
parallel, with a distributed optimizer and, for GPT-3, 12 parts a stage (gpt3, conf/custom.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from paceline.calibration.constants import assumed
from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.precision import gathered_bytes
from paceline.prediction.learning import convergence
from paceline.prediction.mesh.expert_parallel import expert_count, has_experts
from paceline.prediction.passes.layer_roles import is_expert
from paceline.validation.case import Case, Keys, Setting, Skip, Software
from paceline.validation.sets import case_builders, hardware_aliases
from paceline.workload import Workload

TEXTS = ("round", "submitter", "benchmark", "accelerator", "host_networking", "throughput_source")
NUMBERS = (
    "num_nodes",
    "accel_per_node",
    "num_accel",
    "global_batch",
    "grad_accum",
    "seq_len",
    "tp",
    "pp",
    "cp",
    "throughput_samples_per_s",
)
MESH = {"tensor": "tp", "pipeline": "pp", "context": "cp"}
GOOD_SOURCES = ("step_timer", "tracked", "eval_slope")
SENTENCE_TOKENS = 27
WORKLOADS = {
    "resnet": "resnet-50",
    "ssd": "ssd-resnet34",
    "retinanet": "retinanet",
    "maskrcnn": "mask-rcnn",
    "bert": "bert-large-mlm",
    "transformer": "transformer",
    "gnmt": "gnmt",
    "unet3d": "unet3d",
    "ncf": "ncf",
    "gpt3": "gpt3-175b",
    "llama2_70b_lora": "llama-2-70b-lora",
    "llama31_405b": "llama-3-405b",
    "llama31_8b": "llama-3-8b",
    "stable_diffusion": "stable-diffusion",
    "rnnt": "rnnt",
    "rgat": "rgat",
    "dlrm": "dlrm",
    "dlrm_dcnv2": "dlrm-dcnv2",
    "flux1": "flux1",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss_20b": "gpt-oss-20b",
}
NAMED = {
    "gnn": "rgat",
    "flux": "flux1",
    "deepseekv3": "deepseek_v3",
    "deepseekv3_671b": "deepseek_v3",
    "gptoss_20b": "gpt_oss_20b",
    "gpt_oss": "gpt_oss_20b",
}
"""Other names of a benchmark, in results and in logs."""
_PARAMETERS = {"gpt3": 175e9, "llama2_70b_lora": 69e9, "llama31_405b": 405e9}
LARGE = {name: assumed("mlperf_memory") * 2 * count for name, count in _PARAMETERS.items()}
"""Bytes of weights at 16 bits and what goes with them: where a device has less, the model is divided among several."""
SMALL = "IPU"
"""Devices whose memory on the chip holds a few layers: each network lies on several of them."""
LANGUAGE_MODELS = ("gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "deepseek_v3", "gpt_oss_20b")
TRANSFORMER_ENGINE = ("Hopper", "Blackwell")
FP8_SINCE = {"Gaudi 2": "v3.1"}
"""First round in which a device's language models ran in fp8, where it was not that of the device."""
NVFP4_SINCE = "v5.1"
"""First round in which language models ran in NVFP4 on Blackwell (NVIDIA's announcement; no row was checked)."""
FP8_SAMPLES = 32
"""Samples a device from which BERT is taken to run in fp8: between the 6 (3 pairs) and the 36 of NVIDIA's files."""
LENGTHS = {"gpt_oss_20b": 8192}
"""Tokens of a sequence, where not the workload's own (mlcommons/training)."""
VIRTUAL_STAGES = {"gpt3": 12}
"""Parts of each pipeline stage: ``virtual_pipeline_model_parallel_size`` of NVIDIA's implementation, round v3.1."""
OPTIMIZERS = {
    **dict.fromkeys(("bert", "transformer", "gnmt", "gpt3", "llama31_405b", "llama31_8b", "rgat", "flux1"), "adam"),
    **dict.fromkeys(("deepseek_v3", "gpt_oss_20b"), "adam"),
    "rnnt": "lamb",
    "dlrm": "sgd",
}
"""Optimizer of mlcommons/training's reference of each benchmark; momentum by default."""
SHARDED = {"flux1": "zero3"}
"""Networks whose weights are shared out in a node (mlcommons/training, text_to_image: HSDP)."""
NARROW: Mapping[str, Any] = {"compression": "bf16"}
"""BERT on NVIDIA's devices: gradients travel in 16 bits (training_results_v2.1, NVIDIA, bert, run_and_time.sh: ``--fp16
--distributed_lamb --allreduce_post_accumulation_fp16``)."""
WITHOUT_FUSED_ATTENTION = ("Ampere GA10x", "Ada")
"""Architectures without the fused attention of NVIDIA's BERT, which asks for compute capability 8.0 (NVIDIA/apex,
contrib/csrc/fmha/fmha_api.cpp); Hopper has another. Looked up in sight of these rows, which were 24 to 40 % fast."""
NETWORKS = (("V100", "8x InfiniBand EDR"), ("A100", "8x InfiniBand HDR"), ("", "8x InfiniBand NDR"))
"""Between nodes where the row does not say it: what NVIDIA's reference systems of that generation have."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    benchmark, device = _benchmark(row), hardware_aliases.device(row.text("accelerator"))
    devices = row.number_of("num_accel") or 0
    nodes, per_node = row.whole("num_nodes") or 1, row.number_of("accel_per_node")
    name = device.name if device else row.text("accelerator")
    release = row.text("round")
    keys = Keys(benchmark, name, int(devices), nodes, f"{row.text('submitter')} {release}", release)
    rate, source = row.positive("throughput_samples_per_s"), row.text("throughput_source")
    batch, accumulation = row.positive("global_batch"), row.whole("grad_accum") or 1
    if not source or rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if source not in GOOD_SOURCES:
        return Skip(keys, f"throughput from {source}", good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    if batch is None or devices != int(devices) or devices < 1:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    mesh = {name: row.whole(column) or 1 for name, column in MESH.items()}
    together = prod(mesh.values())
    if batch * together < devices:
        return Skip(keys, "a sample divided among devices", good=False)
    samples = batch
    if benchmark == "transformer":
        if batch / devices < 512:
            return Skip(keys, "batch in packed sequences of unknown length", good=False)
        samples = batch / SENTENCE_TOKENS
    workload = case_builders.named(WORKLOADS.get(benchmark), **_dimensions(benchmark, row))
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    if together == 1 and (LARGE.get(benchmark, 0.0) > device.memory.value or device.name.startswith(SMALL)):
        return Skip(keys, case_builders.PARALLEL, good=False)
    machines = _cluster(device, int(devices), nodes, int(per_node or 0), row)
    if machines is None:
        return Skip(keys, "nodes and accelerators do not agree", good=False)
    if has_experts(workload):
        mesh["expert"] = _expert_groups(workload, device, machines.world_size // mesh["pipeline"], mesh)
        together *= mesh["expert"]
    optimizer = OPTIMIZERS.get(benchmark, "momentum")
    if together > 1:
        try:
            setting = _divided(row, workload, machines, int(batch), mesh)
        except UserError as error:
            return case_builders.refused(keys, error)
    else:
        micro = max(1, round(samples / devices / accumulation))
        precision = _precision(row, device, micro)
        more = NARROW if benchmark == "bert" and device.kind == "gpu" else {}
        if benchmark in SHARDED and devices > 1:
            more = {"sharding": SHARDED[benchmark], "shard_devices": machines.devices_per_node if machines.num_nodes > 1 else 0}
        setting = case_builders.setting(machines, micro, precision, optimizer, grad_accum_steps=accumulation, **more)
    scores = benchmark == "bert" and device.architecture in WITHOUT_FUSED_ATTENTION
    return Case(
        keys=keys,
        workload=workload,
        setting=setting,
        software=_software(row),
        attention="eager" if scores else "",
        year=YEARS.get(row.text("round"), 0.0),
        step_s=setting.strategy.global_batch_size / rate,
        precision_from="submission",
    )


def _divided(row: Row, workload: Workload, machines: Cluster, batch: int, mesh: Mapping[str, int]) -> Setting:
    """Return a model that several devices hold. Raises UserError if it does not divide."""
    replicas = max(1, machines.world_size // prod(size for name, size in mesh.items() if name != "expert"))
    micro = row.whole("micro_batch") or max(1, round(batch / replicas / (row.whole("grad_accum") or 1)))
    virtual = VIRTUAL_STAGES.get(_benchmark(row), 1) if mesh["pipeline"] > 1 else 1
    precision = _precision(row, machines.device, micro)
    return case_builders.divided(
        machines,
        workload,
        batch,
        micro,
        precision,
        optimizer=OPTIMIZERS.get(_benchmark(row), "adam"),
        virtual_stages=virtual,
        sharding="zero1",
        # NVIDIA's configurations keep weights in fp8 from round v4.0 on.
        gather_bits=int(8 * gathered_bytes(precision, 16 if _round(row) < 4 else 8)),
        **mesh,
    )


def _expert_groups(workload: Workload, device: Device, most: int, mesh: Mapping[str, int]) -> int:
    """Return the fewest devices that can hold the experts, up to ``most`` and one an expert: no column has the number."""
    experts = sum(p.size for p in workload.parameters if is_expert(p.name))
    rest = (workload.num_parameters - experts) / mesh["tensor"]
    bytes_each, groups = 2 * assumed("mlperf_memory") / mesh["pipeline"], 1
    while bytes_each * (rest + experts / groups) > device.memory.value and 2 * groups <= min(most, expert_count(workload)):
        groups *= 2
    return groups


def _precision(row: Row, device: Device, samples: int) -> str:
    """Return the precision of the matrix products, given the number of samples on a device at once."""
    benchmark = _benchmark(row)
    large = benchmark == "bert" and device.architecture in TRANSFORMER_ENGINE and samples >= FP8_SAMPLES
    language = benchmark in LANGUAGE_MODELS and row.text("round") >= FP8_SINCE.get(device.name, "")
    if language and "nvfp4" in device.precisions and row.text("round") >= NVFP4_SINCE:
        return "nvfp4"
    if "fp8" in device.precisions and (large or language):
        return "fp8"
    return case_builders.half(device)


def _software(row: Row) -> Software:
    """Return the level of the software: one that writes its own kernels is as ordinary code (tinygrad)."""
    if "tinygrad" in row.text("framework").casefold():
        return "ordinary"
    return "tuned" if _round(row) >= 1 else "eager"


YEARS = {"v0.6": 2019.5, "v0.7": 2020.6, "v1.0": 2021.5, "v1.1": 2021.9, "v2.0": 2022.5, "v2.1": 2022.9, "v3.0": 2023.5}
"""When the results of a round were published; later ones are the newest software."""


def _benchmark(row: Row) -> str:
    """Return the benchmark of a row: from round v2.0 on, RetinaNet replaced SSD, in some results under its name."""
    benchmark = row.text("benchmark").replace("-", "_")
    benchmark = NAMED.get(benchmark, benchmark)
    return "retinanet" if benchmark == "ssd" and _round(row) >= 2 else benchmark


def _round(row: Row) -> int:
    version = re.match(r"v([0-9]+)", row.text("round"))
    return int(version[1]) if version else 1


def _dimensions(benchmark: str, row: Row) -> dict[str, Any]:
    if benchmark == "bert":
        return {"seq_len": convergence.mlperf(WORKLOADS[benchmark]).computed_tokens(row.whole("seq_len"))}
    if benchmark == "transformer":
        return {"seq_len": SENTENCE_TOKENS}
    if benchmark in LENGTHS:
        return {"seq_len": row.whole("seq_len") or LENGTHS[benchmark]}
    return {}


def _cluster(device: Device, devices: int, nodes: int, per_node: int, row: Row) -> Cluster | None:
    if device.kind == "tpu":
        return hardware_aliases.torus(device, devices)
    if per_node * nodes != devices:
        if devices % nodes:
            return None
        per_node = devices // nodes
    group, groups = hardware_aliases.domain(device, devices, per_node)
    between = hardware_aliases.network(row.text("host_networking"))
    if between is None or between.bandwidth.value < 5e9:  # the management port of a node that says no other
        between = next(hardware_aliases.network_named(link) for name, link in NETWORKS if name in device.name)
    if group > per_node:
        between = hardware_aliases.side_by_side(between, group // per_node)
    return hardware_aliases.cluster(device, group, groups, between)
