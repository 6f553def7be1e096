"""Executors that run jobs on this machine, Slurm, Ray or Kubernetes."""

from __future__ import annotations

from paceline.scheduling.executors.executor import Executor, NodeDevices, Observed, Phase, Unavailable

__all__ = ["Executor", "NodeDevices", "Observed", "Phase", "Unavailable"]
