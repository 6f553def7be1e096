"""Kernel of a network's attention, and the network with scores in memory if attention is not fused."""

from __future__ import annotations

from paceline.calibration.attention import check_attention, chosen, running
from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.device import Device
from paceline.workload.builders.attention import eager
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_eager = once(eager)


def check_kernel(kernel: str, workload: Workload, device: Device, precision: str, year: float) -> None:
    """Raise UserError if the requested kernel does not run in this job. An empty name is the usual kernel."""
    if kernel:
        if not workload.attends:
            raise UserError(f"attention kernel {kernel}: {workload.name} has no attention", "leave attention out")
        check_attention(device, kernel, precision, year)


def with_scores(workload: Workload, e: Efficiency) -> Workload:
    """Return the workload, with scores written to memory if its attention is not fused. Tuned software fuses softmax."""
    if chosen(e) != "eager" or not workload.fuses_attention:
        return workload
    return _eager(workload, fused_softmax=e.level == "tuned")


def kernel_of(workload: Workload, device: Device, precision: str, e: Efficiency) -> str:
    """Return the kernel of attention; empty without attention."""
    if not workload.attends:
        return ""
    return running(device, precision, e) if workload.fuses_attention else "eager"
