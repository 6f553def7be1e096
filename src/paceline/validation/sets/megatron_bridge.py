"""NVIDIA's table of Megatron-Bridge and NeMo (``megatron_bridge_h100.csv``): tokens a second of a device, by the division.

Tensor parallel runs are sequence parallel, and optimizer states are shared out among the replicas (Megatron-Bridge,
performance guide); if the table says FSDP, weights are too. Nothing is recomputed except as the scripts state. LoRA trains
adapters alone. Experts are whole on their device, and get equally many tokens (scripts/performance/configs, qwen3: expert
tensor parallelism of 1, tokens dropped beyond a capacity factor of 1; deepseek: balance forced). Releases of Megatron-Bridge
run ``FP8`` with current scaling; older pages of NeMo do not say the recipe, and are predicted with delayed scaling.
"""

from __future__ import annotations

from typing import Any

from paceline.csv_rows import Row
from paceline.validation.case import Case, Keys, PrecisionSource, Skip
from paceline.validation.sets import case_builders, hardware_aliases
from paceline.validation.sets.language_models import language_model, model_name
from paceline.validation.sets.megatron_bridge_recipes import WORKLOADS, recipe, year

TEXTS = ("model", "task", "system", "container", "precision")
NUMBERS = (
    "num_gpus",
    "global_batch",
    "micro_batch",
    "seq_len",
    "tp",
    "pp",
    "cp",
    "vp",
    "ep",
    "fsdp",
    "tokens_per_s_per_gpu",
)
FP8 = "fp8-current"
"""Meaning of ``FP8`` in releases of Megatron-Bridge: its recipes' names for Hopper end on ``fp8cs`` (``perf_recipes``)."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("system"))
    devices, release = row.whole("num_gpus") or 1, row.text("container")
    machines = hardware_aliases.reference_system(device, devices) if device else None
    keys = Keys(
        model, device.name if device else row.text("system"), devices, machines.num_nodes if machines else 1, "", release
    )
    rate, length = row.positive("tokens_per_s_per_gpu"), row.whole("seq_len")
    batch, micro = row.whole("global_batch"), row.whole("micro_batch")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or micro is None or length is None:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None or machines is None:
        return Skip(keys, case_builders.NO_DEVICE if device is None else case_builders.MESH, good=device is None)
    precision = case_builders.low_precision(row.text("precision"))
    if not precision:
        stated = row.text("precision")
        return Skip(keys, f"precision {stated}" if stated else case_builders.PRECISION, good=bool(stated))
    stated = precision
    if precision == "fp8" and release:
        precision = FP8
    if precision not in device.precisions:
        return Skip(keys, f"{precision} on a device without it")
    lora = "lora" in row.text("task").casefold()
    workload = language_model(WORKLOADS.get(model_name(model), model), length, lora=lora)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    experts, released = row.whole("ep") or 1, year(release)
    mesh: dict[str, Any] = {
        "tensor": row.whole("tp") or 1,
        "pipeline": row.whole("pp") or 1,
        "context": row.whole("cp") or 1,
        "virtual_stages": row.whole("vp") or 1,
        "expert": experts,
        "sharding": "zero3" if row.whole("fsdp") else "distributed_optimizer",
        **(recipe(model_name(model), device.architecture, precision, released) if experts > 1 else {}),
    }
    step_s = batch * length / (rate * devices)
    origin: PrecisionSource = "row" if precision == stated else "submission"
    return case_builders.divided_case(
        keys, step_s, machines, workload, batch, micro, precision, precision_from=origin, year=released, **mesh
    )
