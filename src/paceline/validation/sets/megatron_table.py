"""Tables of Megatron-LM's papers: iteration times of GPT by tensor, pipeline and interleaved parallelism.

Columns: model, gpu, num_gpus, tp, pp, dp, global_batch, micro_batch, interleave, recompute, hidden, heads, layers, seq_len,
iter_time_s. ``recompute`` is ``none``, ``selective`` or ``full``. Selective recomputation goes with sequence parallelism,
full recomputation without (Korthikanti et al. 2022, arXiv:2205.05198, table 5). Runs are in 16 bits, scores are written to
memory and optimizer states are whole on each device.
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("model", "gpu", "recompute")
NUMBERS = (
    "num_gpus",
    "tp",
    "pp",
    "dp",
    "global_batch",
    "micro_batch",
    "interleave",
    "hidden",
    "heads",
    "layers",
    "seq_len",
    "iter_time_s",
)
VOCABULARY = 51200
"""GPT-2's 50257 tokens, padded as Megatron does (Narayanan et al. 2021, arXiv:2104.04473, section 5)."""
RECOMPUTE = {"": "none", **{name: name for name in ("none", "no", "false", "selective", "full", "true")}}
"""What runs again."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("gpu"))
    tensor, pipeline = row.whole("tp") or 1, row.whole("pp") or 1
    devices = row.whole("num_gpus") or tensor * pipeline * (row.whole("dp") or 1)
    machines = hardware_aliases.reference_system(device, devices) if device else None
    keys = Keys(model, device.name if device else row.text("gpu"), devices, machines.num_nodes if machines else 1)
    measured, batch, micro = row.positive("iter_time_s"), row.whole("global_batch"), row.whole("micro_batch")
    sizes = [row.whole(column) for column in ("layers", "hidden", "heads", "seq_len")]
    if measured is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or micro is None or None in sizes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None or machines is None:
        return Skip(keys, case_builders.NO_DEVICE if device is None else case_builders.MESH, good=device is None)
    recompute = row.text("recompute").casefold()
    if recompute not in RECOMPUTE:
        return Skip(keys, f"recompute {recompute}")
    if row.whole("dp") and tensor * pipeline * (row.whole("dp") or 1) != devices:
        return Skip(keys, case_builders.MESH, good=False)
    layers, hidden, heads, length = (size or 1 for size in sizes)
    workload = case_builders.gpt(layers, hidden, heads, length, VOCABULARY)
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    return case_builders.divided_case(
        keys,
        measured,
        machines,
        workload,
        batch,
        micro,
        case_builders.half(device),
        precision_from="usual",
        tensor=tensor,
        pipeline=pipeline,
        virtual_stages=row.whole("interleave") or 1,
        sequence=tensor > 1 and recompute == "selective",
        recompute=RECOMPUTE[recompute],
    )
