"""NVIDIA DeepLearningExamples as ``nvidia_dle.csv`` has them: READMEs of 39 model directories, one row for each figure.

Rows without a batch, and models that are not among the workloads, are counted and left. Batches of several meanings in one cell
are not guessed at.
"""

from __future__ import annotations

from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.hardware.device import Device
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("framework_dir", "model_dir", "model", "section", "gpu", "precision", "unit")
NUMBERS = ("num_nodes", "num_gpus", "batch_per_gpu", "grad_accum", "seq_len", "throughput")
WORKLOADS = {
    "LanguageModeling/BERT": ("bert-large-mlm", "adam"),
    "Classification/RN50v1.5": ("resnet-50", "momentum"),
    "Classification/ConvNets/resnet50v1.5": ("resnet-50", "momentum"),
    "Classification/ConvNets/resnext101-32x4d": ("resnext-101", "momentum"),
    "Detection/SSD": ("ssd-resnet50", "momentum"),
    "Segmentation/MaskRCNN": ("mask-rcnn", "momentum"),
}
SEGMENT = {"txl-base": 192, "txl-large": 384}
"""Words of a segment, which the rate counts."""
NETWORKS = {
    "V100 SXM2 16GB": "4x InfiniBand EDR",
    "V100": "8x InfiniBand EDR",
    "A100": "8x InfiniBand HDR",
    "": "8x InfiniBand NDR",
}
"""Between nodes, by device: DGX-1, DGX-2, DGX A100, DGX H100."""


def case(row: Row) -> Case | Skip:
    """The row as a case, or the reason to skip it."""
    model, device = row.text("model") or row.text("model_dir"), hardware_aliases.device(row.text("gpu"))
    devices, nodes = row.whole("num_gpus") or 1, row.whole("num_nodes") or 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, row.text("framework_dir"))
    batch, accumulation = row.whole("batch_per_gpu"), row.whole("grad_accum") or 1
    rate, length = row.positive("throughput"), row.whole("seq_len")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or devices % nodes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    if "Sparsity" in row.text("section") or "QAT" in row.text("section"):
        return Skip(keys, "sparse or quantised training")
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    name, optimizer = _network(row)
    workload = case_builders.named(name, **_length(row, length))
    precision = _precision(row.text("precision"), device)
    if workload is None or precision is None:
        return Skip(keys, case_builders.NO_WORKLOAD if workload is None else f"{row.text('precision')} on a device without it")
    between = hardware_aliases.network_named(next(link for text, link in NETWORKS.items() if text in device.name))
    try:
        machines = hardware_aliases.cluster(device, devices // nodes, nodes, between)
        setting = case_builders.setting(machines, batch, precision, optimizer, grad_accum_steps=accumulation)
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    counted = setting.strategy.global_batch_size * SEGMENT.get(name, 1)
    return Case(keys=keys, workload=workload, settings=(setting,), software="ordinary", step_s=counted / rate)


def _network(row: Row) -> tuple[str, str]:
    """The workload of the row's directory, and its optimizer."""
    directory = row.text("model_dir")
    if directory == "LanguageModeling/Transformer-XL":  # TensorFlow's has the base model alone
        return ("txl-large" if "Large" in row.text("section") else "txl-base"), "lamb"
    return WORKLOADS.get(directory, ("", ""))


def _length(row: Row, length: int | None) -> dict[str, Any]:
    """BERT fine-tuning on SQuAD has 384 tokens where the table does not say it."""
    return {"seq_len": length or 384, "fused_attention": False} if row.text("model_dir") == "LanguageModeling/BERT" else {}


def _precision(text: str, device: Device) -> str | None:
    if text in ("mixed", "fp16", "bf16"):
        return case_builders.half(device)
    if text == "fp32" and "tf32" in device.peak_flops:
        return "tf32"  # the framework's default there; the tables' headers speak of TF32
    return text if text in device.peak_flops else None
