"""torchtitan's published runs: tokens a second of a device and peak memory, by the text of the parallelism.

Columns: model, num_gpus, gpu, parallelism, local_batch, global_batch, seq_len, activation_ckpt, technique,
tokens_per_s_per_gpu, peak_mem_gib. ``parallelism`` is text such as ``FSDP 32, TP 8``: whatever it leaves of the devices is
sharded data parallelism. Micro batches of a pipeline are as many as its stages (torchtitan,
``pipeline_parallel_microbatches``). Selective checkpointing keeps every second product and attention (torchtitan,
``activation_checkpoint``, option ``op``); with a number, such as ``selective 2``, it is every second block. A compiled model
counts as tuned, another as tuned with kernels launched one by one. Attention is PyTorch's
``scaled_dot_product_attention``; on Hopper it ran as FlashAttention-2 in the releases of the tables (2.5 and 2.6, of 2024 and
2025: cuDNN's kernel ran on demand alone, pytorch/pytorch#138522).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.prediction.passes.recompute import block_names
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases
from paceline.validation.sets.language_models import language_model

TEXTS = ("model", "gpu", "parallelism", "activation_ckpt", "technique")
NUMBERS = ("num_gpus", "local_batch", "global_batch", "seq_len", "tokens_per_s_per_gpu", "peak_mem_gib")
FP8 = "fp8-current"
"""torchao's ``float8`` scales each tensor by itself unless a row says otherwise (torchtitan, docs/float8.md)."""
_DIMENSION = re.compile(r"(?P<name>hsdp|fsdp2?|ddp|dp|tp|pp|cp|ep)(?:\s*degree)?\s*[=:(x-]*\s*(?P<size>\d+)", re.IGNORECASE)
_SIZE_FIRST = re.compile(r"(?P<size>\d+)\s*-?\s*(?:way)?[\s-]*(?P<name>hsdp|fsdp2?|ddp|dp|tp|pp|cp|ep)\b", re.IGNORECASE)
_MESH = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
_AGAIN = (("selective", "selective:op"), ("sac", "selective:op"), ("op", "selective:op"), ("full", "full"), ("", "none"))
"""By the words of ``activation_ckpt``: what runs again."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("gpu"))
    devices = row.whole("num_gpus") or 1
    machines = hardware_aliases.reference_system(device, devices) if device else None
    keys = Keys(model, device.name if device else row.text("gpu"), devices, machines.num_nodes if machines else 1)
    rate, length, peak = row.positive("tokens_per_s_per_gpu"), row.whole("seq_len"), row.positive("peak_mem_gib")
    mesh = dimensions(row.text("parallelism"))
    together = mesh["tensor"] * mesh["pipeline"] * mesh["context"]
    local, batch = row.whole("local_batch"), row.whole("global_batch")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if device is None or machines is None or devices % together:
        return Skip(keys, case_builders.NO_DEVICE if device is None else case_builders.MESH, good=device is None)
    replicas = devices // together
    if local is None and batch is not None:
        local = batch // replicas
    if not local or length is None:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    technique = row.text("technique").casefold()
    stated = case_builders.low_precision(technique)
    precision = FP8 if stated == "fp8" else stated or "bf16"
    if precision not in device.precisions:
        return Skip(keys, f"{precision} on a device without it")
    workload = language_model(model, length)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    virtual = 2 if "interleaved" in technique and mesh["pipeline"] > 1 else 1
    batch = batch or local * replicas
    parts = mesh["pipeline"] * virtual if mesh["pipeline"] > 1 else 1
    choices: dict[str, Any] = dict(mesh)
    ddp = re.search(r"\bddp\b", row.text("parallelism"), re.IGNORECASE) is not None
    try:
        setting = case_builders.divided(
            machines,
            workload,
            batch,
            max(1, local // parts),
            precision,
            sharding="ddp" if ddp else "zero3",
            virtual_stages=virtual,
            gradient_bits=0 if ddp else 32,  # torchtitan, ``mixed_precision_reduce``
            **recomputation(row.text("activation_ckpt"), len(block_names(workload)) // parts),
            **choices,
        )
    except UserError as error:
        return case_builders.refused(keys, error)
    return Case(
        keys=keys,
        workload=workload,
        setting=setting,
        software="tuned" if "compile" in technique else "eager",
        attention="fa2" if device.architecture == "Hopper" else "sdpa",
        step_s=batch * length / (rate * devices),
        memory_bytes=peak * 2.0**30 if peak else None,
        precision_from="row" if stated else "usual",
    )


def dimensions(text: str) -> Mapping[str, int]:
    """Parse the ``tensor``, ``pipeline``, ``context`` and ``expert`` in a text such as ``FSDP 8, TP 8`` or ``8-way TP``."""
    sizes = dict.fromkeys(_MESH.values(), 1)
    pattern = _DIMENSION if _DIMENSION.search(text) else _SIZE_FIRST
    for matched in pattern.finditer(text):
        if name := _MESH.get(matched["name"].casefold()):
            sizes[name] = max(1, int(matched["size"]))
    return sizes


def recomputation(text: str, blocks: int) -> dict[str, Any]:
    """Return the recomputation in the backward pass as choices of ``Strategy.of``."""
    folded = text.casefold()
    every = re.search(r"selective\D*(\d+)", folded)
    if every:
        return {"recompute": "full", "recompute_layers": max(1, blocks // max(1, int(every[1])))}
    return {"recompute": next(what for word, what in _AGAIN if word in folded)}
