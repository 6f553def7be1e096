"""Know how fast a distributed training job will run before the hardware is there; then make it run that fast.

Nouns: ``Workload``, ``Cluster``, ``Strategy``, ``RunRecord``. Verbs: ``predict``, ``train``, and, for a
script of one's own, ``attach`` and the optimizers ``LARS`` and ``LAMB``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline.codecs import PayloadError
    from paceline.errors import UserError
    from paceline.hardware import Cluster
    from paceline.prediction import Prediction, predict
    from paceline.record import RunRecord
    from paceline.strategy import Strategy
    from paceline.training.attach import attach
    from paceline.training.errors import LostRank, ReplicasDiverged
    from paceline.training.optimizers import LAMB, LARS
    from paceline.training.train import train
    from paceline.workload import Workload

# Where each public name lives; loaded when first used, so that prediction works without torch.
_HOME = {
    "Cluster": "paceline.hardware",
    "LAMB": "paceline.training.optimizers",
    "LARS": "paceline.training.optimizers",
    "LostRank": "paceline.training.errors",
    "PayloadError": "paceline.codecs",
    "Prediction": "paceline.prediction",
    "ReplicasDiverged": "paceline.training.errors",
    "RunRecord": "paceline.record",
    "Strategy": "paceline.strategy",
    "UserError": "paceline.errors",
    "Workload": "paceline.workload",
    "attach": "paceline.training.attach",
    "predict": "paceline.prediction",
    "train": "paceline.training.train",
}

__all__ = [  # noqa: RUF022 (in plain order, as dir() has them)
    "Cluster",
    "LAMB",
    "LARS",
    "LostRank",
    "PayloadError",
    "Prediction",
    "ReplicasDiverged",
    "RunRecord",
    "Strategy",
    "UserError",
    "Workload",
    "attach",
    "predict",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        from paceline.errors import UserError

        raise UserError(f"paceline.{name} needs PyTorch", "install it: pip install 'paceline[train]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
