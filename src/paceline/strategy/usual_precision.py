"""Default precision of a run, by network and device, and the choices that examples of its framework state.

Sources: Micikevicius et al. 2018, Mixed precision training, arXiv:1710.03740; Kalamkar et al. 2019, A study of bfloat16 for
deep learning training, arXiv:1905.12322; PyTorch, CUDA semantics, TensorFloat-32 (``cudnn.allow_tf32`` is on, that of products
is off); Google, Cloud TPU, bfloat16.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from paceline.hardware.device import Device
from paceline.strategy.frameworks import Framework
from paceline.strategy.recompute import FULL_RECOMPUTE
from paceline.workload.prepared import once
from paceline.workload.table import Workload

RULE = (
    "default: for networks of attention, scans or token sequences bf16, or fp16 where matrix units have no bf16; for others "
    "what PyTorch takes: tf32 for convolutions and recurrent layers, else fp32; bf16 on TPUs and other accelerators"
)
_ON_MATRIX_UNITS = 2.5
"""Least speedup of 16-bit products over fp32 that implies matrix units; packed products on ordinary cores reach 2."""
RECOMPUTED = "as PEFT prepares frozen weights of 4 or 8 bits: prepare_model_for_kbit_training"
_RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, slots=True)
class UsualPrecision:
    """Precision with the reason why it is usual."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def usual_precision(workload: Workload, device: Device) -> UsualPrecision:
    """Return the default precision of ``workload`` on ``device``, by ``RULE``."""
    has, on = device.precisions, f"on {device.name}"
    half = next((name for name in ("bf16", "fp16") if name in has), "")
    if "fp32" not in has or device.kind in ("tpu", "accelerator"):
        return UsualPrecision(half or has[0], f"what networks are trained in {on}")
    if workload.on_sequences and half and (half == "bf16" or _on_matrix_units(device)):
        return UsualPrecision(half, f"what {'transformers' if workload.attends else 'such networks'} are trained in {on}")
    if "tf32" in has and not device.architecture.startswith("CDNA") and _by_cudnn(workload):
        return UsualPrecision("tf32", f"what PyTorch runs convolutions and recurrent layers in {on}")
    return UsualPrecision("fp32", f"what PyTorch runs such networks in {on}")


def usual_choices(workload: Workload, given: Collection[str], framework: Framework) -> dict[str, Any]:
    """Return values of choices that are not ``given``, by name, as people run the network under the framework.

    For networks on sequences these are the values of the framework's examples. Next to weights of few bits whole blocks are
    recomputed unless the examples say otherwise: PEFT turns gradient checkpointing on for them (``utils/other.py``,
    ``prepare_model_for_kbit_training``).
    """
    usual = {"recompute": FULL_RECOMPUTE.name} if workload.frozen_bits else {}
    usual |= framework.examples if workload.on_sequences else {}
    return {name: value for name, value in usual.items() if name not in given}


def _on_matrix_units(device: Device) -> bool:
    """Return whether fp16 runs on matrix units."""
    return device.peak("fp16").value > _ON_MATRIX_UNITS * device.peak("fp32").value


@once
def _by_cudnn(workload: Workload) -> bool:
    """Return whether most FLOPs are in convolutions and recurrent layers. PyTorch runs these in tf32 by default."""
    flops = sum(o.flops for layer in workload.layers for o in layer.operations if o.kind == "conv" or layer.kind in _RECURRENT)
    return 2 * flops > workload.flops_per_sample
