"""NVIDIA DeepLearningExamples as ``nvidia_dle.csv`` has them: READMEs of 39 model directories, one row for each figure.

Rows without a batch, and models that are not among the workloads, are counted and left. Batches of several meanings in one cell
are not guessed at.

PyTorch's and PaddlePaddle's BERT reads sequences of up to 512 tokens in bins of 64 (LDDL; scripts/run_pretraining.sh,
``phase2_bin_size``) and pads each batch to its longest alone: how long they were is not said. Rows of 128 tokens are not
binned. BioBERT is pre-trained as BERT base is, ELECTRA base fine-tuned as BERT base. The Transformer's batch and rate are in
target tokens, 27 to a sentence. nnU-Net in three dimensions has volumes of 128 voxels a side. DLRM's batches are in thousands
(1024), whose ``k`` the column has lost; its tables differ from MLPerf's in their rows, which changes only their content.
"""

from __future__ import annotations

import re
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.hardware.device import Device
from paceline.validation.case import Case, Keys, Skip
from paceline.validation.sets import case_builders, hardware_aliases

TEXTS = ("framework_dir", "model_dir", "model", "section", "gpu", "precision", "unit", "raw")
NUMBERS = ("num_nodes", "num_gpus", "batch_per_gpu", "grad_accum", "seq_len", "throughput")
WORKLOADS = {
    "LanguageModeling/BERT": ("bert-large-mlm", "lamb"),
    "LanguageModeling/BERT/biobert": ("bert-base-mlm", "lamb"),
    "Classification/RN50v1.5": ("resnet-50", "momentum"),
    "Classification/ConvNets/resnet50v1.5": ("resnet-50", "momentum"),
    "Classification/ConvNets/resnext101-32x4d": ("resnext-101", "momentum"),
    "Detection/SSD": ("ssd-resnet50", "momentum"),
    "Segmentation/MaskRCNN": ("mask-rcnn", "momentum"),
    "Translation/Transformer": ("transformer", "adam"),
    "Recommendation/DLRM": ("dlrm", "sgd"),
}
FINE_TUNED = {
    "LanguageModeling/BERT": ("bert-large-squad", "adam"),
    "LanguageModeling/ELECTRA": ("bert-base-squad", "adam"),
}
"""On SQuAD, 384 tokens where the table does not say it."""
BINNED = ("PyTorch", "PaddlePaddle")
"""Whose BERT reads sequences of 512 tokens in bins."""
SENTENCE_TOKENS = 27
SEGMENT = {"txl-base": 192, "txl-large": 384}
"""Words of a segment, which the rate counts."""
THOUSANDS = {"Recommendation/DLRM": 1024}
LONG = 512
RATE_OF_BATCH = 1e-3
"""Least rate of a device for a batch: a lower figure in a table of millions has lost its factor."""
NETWORKS = {
    "V100 SXM2 16GB": "4x InfiniBand EDR",
    "V100": "8x InfiniBand EDR",
    "A100": "8x InfiniBand HDR",
    "": "8x InfiniBand NDR",
}
"""Between nodes, by device: DGX-1, DGX-2, DGX A100, DGX H100."""


def case(row: Row) -> Case | Skip:
    """Return the row as a case, or the reason to skip it."""
    model, device = row.text("model") or row.text("model_dir"), _device(row)
    devices, nodes = row.whole("num_gpus") or 1, row.whole("num_nodes") or 1
    keys = Keys(model, device.name if device else row.text("gpu"), devices, nodes, row.text("framework_dir"))
    batch, accumulation = row.whole("batch_per_gpu"), row.whole("grad_accum") or 1
    rate, length = row.positive("throughput"), row.whole("seq_len")
    if rate is None:
        return Skip(keys, case_builders.NO_VALUE, good=False)
    if batch is None or devices % nodes:
        return Skip(keys, case_builders.NO_BATCH, good=False)
    batch *= THOUSANDS.get(row.text("model_dir"), 1)
    if "Sparsity" in row.text("section") or "QAT" in row.text("section"):
        return Skip(keys, "sparse or quantised training")
    if device is None:
        return Skip(keys, case_builders.NO_DEVICE)
    if rate < RATE_OF_BATCH * batch:
        return Skip(keys, "rate in another unit than the batch", good=False)
    if row.text("framework_dir") in BINNED and row.text("model_dir") == "LanguageModeling/BERT" and length == LONG:
        return Skip(keys, "sequences of unknown length", good=False)
    name, optimizer = _network(row)
    workload = case_builders.named(name, **_length(name, row, length))
    precision = _precision(row.text("precision"), device)
    if workload is None or precision is None:
        return Skip(keys, case_builders.NO_WORKLOAD if workload is None else f"{row.text('precision')} on a device without it")
    between = hardware_aliases.network_named(next(link for text, link in NETWORKS.items() if text in device.name))
    tokens = SENTENCE_TOKENS if name == "transformer" else 1
    try:
        machines = hardware_aliases.cluster(device, devices // nodes, nodes, between)
        setting = case_builders.setting(
            machines, max(1, round(batch / tokens)), precision, optimizer, grad_accum_steps=accumulation
        )
    except UserError:
        return Skip(keys, case_builders.NO_BATCH)
    counted = setting.strategy.global_batch_size * SEGMENT.get(name, tokens)
    return Case(keys=keys, workload=workload, setting=setting, software="ordinary", step_s=counted / rate)


def _device(row: Row) -> Device | None:
    """Return the device of the row; if the memory of an A100 is missing, it is in the section."""
    gpu = row.text("gpu")
    memory = re.search(r"[0-9]+ ?G", row.text("section"))
    if gpu == "A100-SXM" and memory:
        gpu = f"A100-SXM-{memory[0].replace(' ', '')}B"
    return hardware_aliases.device(gpu)


def _network(row: Row) -> tuple[str, str]:
    """Return the workload of the row's directory, and its optimizer."""
    directory, section = row.text("model_dir"), row.text("section")
    tuned = "fine-tuning" in section.casefold()
    if directory == "LanguageModeling/Transformer-XL":  # TensorFlow's has the base model alone
        return ("txl-large" if "Large" in section else "txl-base"), "lamb"
    if directory == "Segmentation/nnUNet":  # the first column of the table is the number of dimensions
        return ("unet3d", "adam") if row.text("raw").startswith("3 ") else ("", "")
    if tuned:
        return FINE_TUNED.get(directory, ("", ""))
    return WORKLOADS.get(directory, ("", ""))


def _length(name: str, row: Row, length: int | None) -> dict[str, Any]:
    """Return BERT's length and attention, which only PaddlePaddle's mixed precision fuses (``fuse_mha``)."""
    if not name.startswith("bert"):
        return {}
    fused = row.text("framework_dir") == "PaddlePaddle" and row.text("precision") == "mixed"
    return {"seq_len": length or 384, "fused_attention": fused}


def _precision(text: str, device: Device) -> str | None:
    if text in ("mixed", "fp16", "bf16"):
        return case_builders.half(device)
    if text == "fp32" and "tf32" in device.peak_flops:
        return "tf32"  # the framework's default there; the tables' headers speak of TF32
    return text if text in device.peak_flops else None
