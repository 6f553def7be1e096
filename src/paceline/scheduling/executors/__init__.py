"""Executors run jobs for real: on this machine, on Slurm, on Ray; for Kubernetes they write manifests."""

from __future__ import annotations

from paceline.scheduling.executors.executor import Executor, NodeDevices, Observed, Phase, Unavailable

__all__ = ["Executor", "NodeDevices", "Observed", "Phase", "Unavailable"]
