"""Defaults of frameworks that rows leave out: level of software, kernels and optimizer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.calibration.constants import NEWEST_YEAR
from paceline.csv_rows import Row
from paceline.hardware.device import Device
from paceline.strategy.usual_precision import usual_precision
from paceline.validation.case import PrecisionSource, Software
from paceline.validation.sets import case_builders
from paceline.validation.sets.published import options
from paceline.workload import Workload


@dataclass(frozen=True, slots=True)
class FrameworkDefaults:
    """Defaults of a framework.

    Attributes:
        software: level of its kernels. ``compiled``: that under a compiler that the row names.
        name: its name in ``FRAMEWORKS``; empty: the plain one of its level.
        sharding: what it shares out by default, a name of ``SHARDINGS``.
        needed: what it shares out where a run would not fit otherwise.
        scaled: attention is PyTorch's ``scaled_dot_product_attention``.
        optimizer: optimizer of its examples for language models.
        fused_since: month since which its own networks fuse attention. Others, as those of Hugging Face, write their scores.
    """

    software: Software
    compiled: Software = "ordinary"
    sharding: str = "ddp"
    needed: str = "ddp"
    scaled: bool = False
    optimizer: str = "adam"
    fused_since: str = ""
    name: str = ""


_FRAMEWORKS: tuple[tuple[str, FrameworkDefaults], ...] = (
    (r"hf \+ deepspeed", FrameworkDefaults("ordinary", name="deepspeed-4")),
    (r"hf finetune\.py", FrameworkDefaults("ordinary", name="deepspeed")),
    (r"oneflow-gpt|oneflow", FrameworkDefaults("tuned", "tuned")),
    (r"maxtext", FrameworkDefaults("tuned", "tuned", sharding="zero3")),
    (r"megatron|nemo(?! automodel)|transformerengine", FrameworkDefaults("tuned", "tuned", needed="distributed_optimizer")),
    (r"neuron", FrameworkDefaults("tuned", "tuned", needed="distributed_optimizer", fused_since="2024-07")),
    (r"internevo|mosaic|levanter|jax|pax|t5x", FrameworkDefaults("tuned", "tuned", needed="zero3")),
    (r"torchtitan|torchao", FrameworkDefaults("eager", "tuned", sharding="zero3", scaled=True)),
    (r"fms-fsdp|prime", FrameworkDefaults("eager", "tuned", sharding="zero3")),
    (r"nemo automodel", FrameworkDefaults("eager", "tuned")),
)
"""Frameworks by name, the first that fits; any other is ordinary code. Defaults: MaxText, ``ici_fsdp_parallelism=-1``;
torchtitan, ``data_parallel_shard_degree=-1``; AWS Neuron, ZeRO-1 and the kernel of attention (release notes of
neuronx-nemo-megatron, 0.6.0 of July 2024)."""
_TF32_BY_DEFAULT = re.compile(r"a0\+|nvcr|\bngc\b|nvidia|tensorflow|paddle|pytorch[- ]1\.(?:[7-9]|10|11)\b", re.IGNORECASE)
"""Software whose fp32 products run in TF32 where the device has it: NVIDIA's containers, PyTorch 1.7 to 1.11 (PyTorch, CUDA
semantics, TensorFloat-32), TensorFlow."""


def framework(row: Row) -> FrameworkDefaults:
    """Return the defaults of the row's framework."""
    text = row.text("framework")
    return next(
        (found for pattern, found in _FRAMEWORKS if re.search(pattern, text, re.IGNORECASE)), FrameworkDefaults("ordinary")
    )


FULL = ("fp32", "tf32")


def software(row: Row, number_format: str) -> Software:
    """Return the level of the row's software. Megatron's fused kernels are for 16 bits (``fused_softmax.py``)."""
    said = f"{row.text('framework')} {row.text('other_options')}".casefold()
    of = framework(row)
    if number_format in FULL and re.search(r"megatron|deepspeed", said):
        return "ordinary"
    if "nemo automodel" in said and _divides_layers(row) and not re.search(r"\bte\b", said):
        return "ordinary"
    return of.compiled if re.search(r"(?<!no )(?<!without )compile(?!d? ?[=:]? ?(?:false|off|no\b))", said) else of.software


def _divides_layers(row: Row) -> bool:
    """Return whether the devices of a group share each layer. There NeMo AutoModel leaves out the fused kernels of Liger, so
    that networks of transformers run their own (auto_model.py, ``_apply_preload_overrides``). Two rows at two thirds of the
    measured time said where to look."""
    return any((options.number(row, name) or 1) > 1 for name in ("tp", "cp"))


def attention(row: Row, of: Device) -> str:
    """Return the kernel of attention where it is not the usual one of the software. On Hopper PyTorch's choice was
    FlashAttention-2 (pytorch/pytorch#138522)."""
    since = framework(row).fused_since
    if since and (row.text("date") < since or "huggingface" in row.text("model").casefold()):
        return "eager"
    return ("fa2" if of.architecture == "Hopper" else "sdpa") if framework(row).scaled else ""


def optimizer(row: Row, transformer: bool) -> str:
    """Return the optimizer that the row names, or the usual one."""
    said = re.search(r"\b(lamb|lars|adamw|adam|sgd|momentum)\b", row.text("other_options"), re.IGNORECASE)
    if re.search(r"\bno optimizer step\b", row.text("other_options")):
        return "sgd"  # the nearest that there is
    if said and said[1].casefold() == "sgd" and "timm" in row.text("framework"):
        return "momentum"  # timm, optim/_optim_factory.py: its sgd has a momentum of 0.9
    if said:
        return said[1].casefold()
    return framework(row).optimizer if transformer else "momentum"


def precision(row: Row, of: Device, network: Workload) -> tuple[str, PrecisionSource]:
    """Return the precision of the products and its source; empty for text that names none."""
    text = row.text("precision")
    folded = re.sub(r"int[48] base.*", "", text.casefold())  # of frozen weights, which products do not compute in
    if not folded or folded.startswith("not stated"):
        return usual_precision(network, of).name, "usual"
    if "tf32" in folded and "tf32" in of.precisions:
        return "tf32", "row"
    if re.search(r"\bamp\b|mixed|autocast:?amp|\bhalf\b", folded) and not re.search(r"bf16|fp16|fp8|fp4", folded):
        return case_builders.half(of), "row"
    found = case_builders.low_precision(folded)
    if found == "fp32" and "tf32" in of.precisions and _TF32_BY_DEFAULT.search(row.text("framework")):
        return "tf32", "usual"
    return found, "usual" if "not stated" in folded else "row"


def year(row: Row, level: Software) -> float:
    """Return the year of the software, from ``date``; 0: not stated, or not known to matter.

    Tuned software alone is known to become faster. The date is that of the page, which cannot be older than the run.
    """
    matched = re.match(r"(20\d\d)-(\d\d)", row.text("date"))
    if matched is None or level == "ordinary":
        return 0.0
    return min(int(matched[1]) + (int(matched[2]) - 0.5) / 12, NEWEST_YEAR)
