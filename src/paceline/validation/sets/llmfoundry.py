"""MPT models with FSDP (``llmfoundry_mpt_fsdp.csv``): full sharding, bf16 or fp8, activation checkpointing by row.

Steps are rebuilt from tokens per second; samples per second are rounded to whole numbers in the source.
"""

from __future__ import annotations

import re

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders as making
from paceline.validation.sets import hardware_aliases as spelling

TEXTS = ("model", "gpu", "precision", "sharding", "activation_ckpt", "act_cpu_offload", "interconnect")
NUMBERS = ("num_gpus", "seq_len", "micro_batch", "grad_accum", "global_batch", "tokens_per_s")
_EIGHTH = re.compile(r"[\s_-]+fp8$", re.IGNORECASE)
SHARDINGS = {"FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2", "NO_SHARD": "ddp"}
NODE = 8


def case(row: Row) -> Case | Skip:
    """What the row says."""
    gpu, eighth = _EIGHTH.subn("", row.text("gpu"))  # h100_80gb_fp8
    model, found = row.text("model"), spelling.device(gpu)
    devices, length = row.whole("num_gpus") or 1, row.whole("seq_len")
    nodes = -(-devices // NODE)
    keys = Keys(model, found.name if found else row.text("gpu"), devices, nodes, row.text("gpu"))
    micro, accumulation, batch = row.whole("micro_batch"), row.whole("grad_accum") or 1, row.whole("global_batch")
    rate = row.positive("tokens_per_s")
    if rate is None:
        return Skip(keys, making.NO_VALUE, good=False)
    if micro is None or length is None or devices % nodes:
        return Skip(keys, making.NO_BATCH, good=False)
    if row.text("act_cpu_offload").casefold() == "true":
        return Skip(keys, "activations moved to the host")
    if found is None:
        return Skip(keys, making.NO_DEVICE)
    precision, sharding = "fp8" if eighth else _precision(row.text("precision")), SHARDINGS.get(row.text("sharding").upper())
    if precision is None or sharding is None:
        return Skip(keys, f"precision {row.text('precision')}" if precision is None else f"sharding {row.text('sharding')}")
    if precision not in found.peak_flops:
        return Skip(keys, f"{precision} on a device without it")
    network = making.named(model.casefold(), seq_len=length)
    if network is None:
        return Skip(keys, making.NO_WORKLOAD)
    given = re.search(r"([0-9.]+)\s*Gbps", row.text("interconnect"))
    between = spelling.network_named(f"{given[1]}Gb/s" if given else "1600Gb/s") if nodes > 1 else None
    try:
        one = making.setting(
            spelling.cluster(found, devices // nodes, nodes, between),
            micro,
            precision,
            "adam",
            grad_accum_steps=accumulation,
            sharding=sharding,
            recompute=row.text("activation_ckpt").casefold() == "true",
        )
    except UserError:
        return Skip(keys, making.NO_BATCH)
    samples = batch if batch is not None else one.strategy.global_batch_size
    return Case(keys=keys, workload=network, settings=(one,), software="tuned", step_s=samples * length / rate)


def _precision(text: str) -> str | None:
    name = text.casefold().removeprefix("amp_")
    return name if name in ("bf16", "fp16", "fp8", "fp32") else None
