"""Megatron iterations on A100 (``vtrain_megatron_a100.csv``), GPT of the row's dimensions in fp16, by TP, PP and DP."""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("gpu",)
NUMBERS = (
    "num_gpus",
    "hidden",
    "heads",
    "layers",
    "seq_len",
    "global_batch",
    "micro_batch",
    "tp",
    "dp",
    "pp",
    "iter_time_ms",
)
NODE = 8
VOCABULARY = 51200
"""GPT-2's 50257 tokens, padded as Megatron does."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    device = hardware_aliases.device(row.text("gpu"))
    devices, hidden, heads = row.whole("num_gpus") or 1, row.whole("hidden"), row.whole("heads")
    layers, length = row.whole("layers"), row.whole("seq_len")
    batch, micro, measured = row.whole("global_batch"), row.whole("micro_batch"), row.positive("iter_time_ms")
    tensor, pipeline, data = row.whole("tp") or 1, row.whole("pp") or 1, row.whole("dp") or devices
    nodes = -(-devices // NODE)
    keys = Keys(f"h{hidden}-l{layers}", device.name if device else row.text("gpu"), devices, nodes, "")
    if measured is None or hidden is None or heads is None or layers is None or length is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or micro is None or data * tensor * pipeline != devices or devices % nodes or batch % (micro * data):
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    workload = case_builders.gpt(layers, hidden, heads, length, VOCABULARY)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    try:
        machines = hardware_aliases.cluster(device, devices // nodes, nodes, "8x InfiniBand HDR" if nodes > 1 else None)
        setting = case_builders.setting(
            machines,
            micro,
            case_builders.half(device),
            "adam",
            grad_accum_steps=batch // (micro * data),
            tensor=tensor,
            pipeline=pipeline,
        )
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    return Case(
        keys=keys, workload=workload, setting=setting, software="ordinary", step_s=measured / 1e3, precision_from="usual"
    )
