"""NVIDIA's DGX Cloud benchmarks (``nvidia_dgxc_h100_bf16.csv``): step times of language models by the division.

Megatron's runs are as those of ``megatron_bridge``. Fine-tuning packs its sequences, which takes a micro batch of 1 (NVIDIA,
NeMo user guide, sequence packing). Rows of FSDP (MaxText, Paxml) do not say how many devices share the weights. A shortened
model has the layers stated in the row.
"""

from __future__ import annotations

from typing import Any

from paceline.csv_rows import Row
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases
from paceline.validation.sets.language_models import has_experts, language_model, model_name

TEXTS = ("model", "table_title", "gpu", "precision", "tag", "tokens_per_s", "vp", "cp")
NUMBERS = ("num_gpus", "global_batch", "micro_batch", "seq_len", "layers", "tp", "pp", "step_time_s")
FSDP = "FSDP among an unknown number of devices"
AGREES = 0.02
"""Relative difference that tokens a second may have from those of the step time, which are rounded."""
EXPERT_GROUPS = {"grok-1": {8: 2, 16: 4, 32: 8}}
"""Devices of an expert group by devices of the run, for models with experts; the largest for more. The tables omit them
(grok1/configure.sh and grok1_314b.yaml, 24.11). Experts of this version are divided as all layers are (Megatron-Core 0.9), and
get equally many tokens: a capacity factor of 1.
"""
GROK_TOKENS = 128256
"""Its vocabulary in these runs: that of Llama 3."""
NOTHING = ("", "n/a", "na", "none")


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("gpu"))
    devices = row.whole("num_gpus") or 1
    machines = hardware_aliases.reference_system(device, devices) if device else None
    nodes = machines.num_nodes if machines else 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, "", row.text("tag"))
    measured, length, batch = row.positive("step_time_s"), row.whole("seq_len"), row.whole("global_batch")
    tuning = "finetuning" in model.casefold()
    micro = row.whole("micro_batch") or (1 if tuning else None)
    if measured is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if device is None or machines is None:
        return Skip(keys, case_builders.NO_DEVICE if device is None else case_builders.MESH, good=device is None)
    experts = EXPERT_GROUPS.get(model_name(model), {})
    if has_experts(model) and not experts:
        return Skip(keys, case_builders.EXPERTS)
    if batch is None or micro is None or length is None:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if not _agrees(row, batch * length / measured):
        return Skip(keys, "step time and tokens a second do not agree", good=False)
    if "FSDP" in row.text("table_title"):
        return Skip(keys, FSDP, good=False)
    precision = case_builders.low_precision(row.text("precision"))
    if not precision:
        return Skip(keys, case_builders.PRECISION, good=False)
    if precision not in device.precisions:
        return Skip(keys, f"{precision} on a device without it")
    workload = language_model(
        model,
        length,
        layers=row.whole("layers") or 0,
        lora="lora" in model.casefold(),
        vocabulary=GROK_TOKENS if experts else 0,
    )
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    mesh: dict[str, Any] = {
        "tensor": row.whole("tp") or 1,
        "pipeline": row.whole("pp") or 1,
        "context": _or_one(row, "cp"),
        "virtual_stages": _or_one(row, "vp"),
        "sharding": "distributed_optimizer",
    }
    if experts:
        mesh |= {"expert": experts.get(devices, max(experts.values())), "expert_tensor": mesh["tensor"]}
    return case_builders.divided_case(keys, measured, machines, workload, batch, micro, precision, **mesh)


def _or_one(row: Row, column: str) -> int:
    """Return the whole number in the cell; 1 if the table has none. Raises UserError for anything else."""
    if row.text(column).casefold() in NOTHING:
        return 1
    return row.whole(column) or 1


def _agrees(row: Row, tokens_per_s: float) -> bool:
    try:
        published = float(row.text("tokens_per_s"))
    except ValueError:
        return not row.text("tokens_per_s")
    return abs(published / tokens_per_s - 1) <= AGREES
