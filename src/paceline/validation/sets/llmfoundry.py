"""MPT models with FSDP (``llmfoundry_mpt_fsdp.csv``): full sharding, bf16 or fp8, activation checkpointing by row.

Steps are rebuilt from tokens per second; samples per second are rounded to whole numbers in the source. Attention is Triton's,
as ``--attn_impl`` of scripts/train/benchmarking/submit_benchmarks.py has it, which was written for the A100; FlashAttention-2
is taken on newer chips.
"""

from __future__ import annotations

import re

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("model", "gpu", "precision", "sharding", "activation_ckpt", "act_cpu_offload", "interconnect")
NUMBERS = ("num_gpus", "seq_len", "micro_batch", "grad_accum", "global_batch", "tokens_per_s")
_FP8 = re.compile(r"[\s_-]+fp8$", re.IGNORECASE)
SHARDINGS = {"FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2", "NO_SHARD": "ddp"}
NODE = 8


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    gpu, is_fp8 = _FP8.subn("", row.text("gpu"))  # h100_80gb_fp8
    model, device = row.text("model"), hardware_aliases.device(gpu)
    devices, length = row.whole("num_gpus") or 1, row.whole("seq_len")
    nodes = -(-devices // NODE)
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, row.text("gpu"))
    micro, accumulation, batch = row.whole("micro_batch"), row.whole("grad_accum") or 1, row.whole("global_batch")
    rate = row.positive("tokens_per_s")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if micro is None or length is None or devices % nodes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if row.text("act_cpu_offload").casefold() == "true":
        return Skip(keys, "activations moved to the host")
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    precision, sharding = "fp8" if is_fp8 else _precision(row.text("precision")), SHARDINGS.get(row.text("sharding").upper())
    if precision is None or sharding is None:
        return Skip(keys, f"precision {row.text('precision')}" if precision is None else f"sharding {row.text('sharding')}")
    if precision not in device.precisions:
        return Skip(keys, f"{precision} on a device without it")
    workload = case_builders.named(model.casefold(), seq_len=length)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    bandwidth = re.search(r"([0-9.]+)\s*Gbps", row.text("interconnect"))
    between = hardware_aliases.network_named(f"{bandwidth[1] if bandwidth else 1600}Gb/s RoCE") if nodes > 1 else None
    try:
        setting = case_builders.setting(
            hardware_aliases.cluster(device, devices // nodes, nodes, between),
            micro,
            precision,
            "adam",
            grad_accum_steps=accumulation,
            sharding=sharding,
            recompute=row.text("activation_ckpt").casefold() == "true",
        )
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    samples = batch if batch is not None else setting.strategy.global_batch_size
    step_s = samples * length / rate
    kernel = "triton" if device.architecture.startswith("Ampere") else "fa2"
    if precision == "fp32":
        kernel = "eager"  # both compute in 16 bits
    return Case(keys=keys, workload=workload, setting=setting, software="tuned", step_s=step_s, attention=kernel)


def _precision(text: str) -> str | None:
    name = text.casefold().removeprefix("amp_")
    return name if name in ("bf16", "fp16", "fp8", "fp32") else None
