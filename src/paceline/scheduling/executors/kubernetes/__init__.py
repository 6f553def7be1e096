"""Executor of jobs on Kubernetes, with queues of Kueue, and manifests of JobSets."""

from __future__ import annotations

from paceline.scheduling.executors.kubernetes.job_set import jobset

__all__ = ["jobset"]
