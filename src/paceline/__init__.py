"""Predict how fast a distributed training job will run before the hardware exists, then make it run that fast.

Nouns: ``Workload``, ``Cluster``, ``Strategy`` (of ``Parallelism`` and ``GradientExchange``), ``Predictor``, ``RunRecord``.
Verbs: ``predict``, ``plan``, ``whatif``, ``explain``, ``diagnose``, ``schedule``,
``schedule_start``, ``train``, ``slim``; for your own script
``attach``, ``attach_local``; optimizers ``LARS``, ``LAMB``, ``Muon``, ``OneBitAdam`` and ``OneBitLamb``. They take names:
``paceline.predict("llama-3-8b", "2x8 A100", network="100Gb/s")``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline.codecs import PayloadError
    from paceline.errors import LostRank, ReplicasDiverged, UserError
    from paceline.hardware import Cluster
    from paceline.prediction import Prediction, Predictor
    from paceline.record import RunRecord
    from paceline.scheduling.starts.verb import schedule_start
    from paceline.scheduling.verb import schedule
    from paceline.slimming.slim import slim
    from paceline.strategy import GradientExchange, Parallelism, Strategy
    from paceline.training.attach.attach import attach
    from paceline.training.attach.attach_local import attach_local
    from paceline.training.attach.attach_options import AttachOptions
    from paceline.training.attach.peers.peers import Peers
    from paceline.training.optimizers import LAMB, LARS
    from paceline.training.optimizers.muon import Muon
    from paceline.training.optimizers.one_bit import OneBitAdam, OneBitLamb
    from paceline.training.runs.train import train
    from paceline.verbs import ask, diagnose, explain, plan, predict, whatif
    from paceline.workload import Workload

# Modules of the public names. They load at first use, so that prediction works without torch.
_HOME = {
    "AttachOptions": "paceline.training.attach.attach_options",
    "Cluster": "paceline.hardware",
    "GradientExchange": "paceline.strategy",
    "LAMB": "paceline.training.optimizers",
    "LARS": "paceline.training.optimizers",
    "LostRank": "paceline.errors",
    "Muon": "paceline.training.optimizers.muon",
    "OneBitAdam": "paceline.training.optimizers.one_bit",
    "OneBitLamb": "paceline.training.optimizers.one_bit",
    "Parallelism": "paceline.strategy",
    "PayloadError": "paceline.codecs",
    "Peers": "paceline.training.attach.peers.peers",
    "Prediction": "paceline.prediction",
    "Predictor": "paceline.prediction",
    "ReplicasDiverged": "paceline.errors",
    "RunRecord": "paceline.record",
    "Strategy": "paceline.strategy",
    "UserError": "paceline.errors",
    "Workload": "paceline.workload",
    "ask": "paceline.verbs",
    "attach": "paceline.training.attach.attach",
    "attach_local": "paceline.training.attach.attach_local",
    "diagnose": "paceline.verbs",
    "explain": "paceline.verbs",
    "plan": "paceline.verbs",
    "predict": "paceline.verbs",
    "schedule": "paceline.scheduling.verb",
    "schedule_start": "paceline.scheduling.starts.verb",
    "slim": "paceline.slimming.slim",
    "train": "paceline.training.runs.train",
    "whatif": "paceline.verbs",
}

__all__ = [  # noqa: RUF022 (in plain order, as dir() has them)
    "AttachOptions",
    "Cluster",
    "GradientExchange",
    "LAMB",
    "LARS",
    "LostRank",
    "Muon",
    "OneBitAdam",
    "OneBitLamb",
    "Parallelism",
    "PayloadError",
    "Peers",
    "Prediction",
    "Predictor",
    "ReplicasDiverged",
    "RunRecord",
    "Strategy",
    "UserError",
    "Workload",
    "ask",
    "attach",
    "attach_local",
    "diagnose",
    "explain",
    "plan",
    "predict",
    "schedule",
    "schedule_start",
    "slim",
    "train",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from paceline.errors import UserError, needs_torch

    try:
        with needs_torch(f"paceline.{name}"):
            value = getattr(import_module(_HOME[name]), name)
    except UserError as error:  # without torch the name is there all the same, and its use says what to install
        return _unusable(name, error)
    globals()[name] = value
    return value


def _unusable(name: str, error: Exception) -> Any:
    """Return a class that raises ``error`` when it is called, for a ``name`` whose library is missing."""

    def refuse(cls: type, *_: object, **__: object) -> Any:
        raise error

    return type(name, (), {"__new__": refuse, "__doc__": str(error)})


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
