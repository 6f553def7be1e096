"""Lambda's PyTorch benchmark (``lambda_single_node.csv``): NVIDIA's examples on one node, mixed precision or fp32/TF32.

The batch listed is that of all devices. BERT is fine-tuned on SQuAD, 384 tokens.
"""

from __future__ import annotations

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("system", "model", "precision", "unit")
NUMBERS = ("num_gpus", "batch_per_gpu_listed", "throughput")
WORKLOADS = {
    "resnet50": ("resnet-50", "momentum"),
    "ssd": ("ssd-resnet50", "momentum"),
    "gnmt": ("gnmt", "adam"),
    "bert_base_squad": ("bert-base-squad", "adam"),
    "bert_large_squad": ("bert-large-squad", "adam"),
}
PAIR_TOKENS = 54
"""Tokens in a pair of sentences of WMT English-German, 27 on either side. GNMT's rate counts both sides."""


def case(row: Row) -> Case | Skip:
    """The row as a case, or the reason to skip it."""
    model, device = row.text("model"), hardware_aliases.device(row.text("system"))
    devices = row.whole("num_gpus") or 1
    keys = Keys(model, device.name if device else row.text("system"), devices, 1, "")
    batch, rate = row.whole("batch_per_gpu_listed"), row.positive("throughput")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or batch % devices:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    name, optimizer = WORKLOADS.get(model, ("", ""))
    workload = case_builders.named(name, **({"seq_len": 384, "fused_attention": False} if model.startswith("bert") else {}))
    if workload is None:
        return Skip(keys, case_builders.NO_WORKLOAD)
    full = "tf32" if "tf32" in device.peak_flops else "fp32"
    precision = case_builders.half(device) if "16" in row.text("precision") else full
    try:
        setting = case_builders.setting(hardware_aliases.cluster(device, devices, 1), batch // devices, precision, optimizer)
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    per_sample = PAIR_TOKENS if row.text("unit") == "tokens/s" else 1
    return Case(keys=keys, workload=workload, settings=(setting,), software="ordinary", step_s=batch * per_sample / rate)
