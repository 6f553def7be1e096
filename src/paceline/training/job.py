"""One training job as a value: what the command line says, what travels to the workers, what a checkpoint remembers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.errors import UserError
from paceline.strategy import OPTIMIZERS, Strategy


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides a run's result, and where it is written.

    Attributes:
        model: a network's name or ``module:function``; ``data`` likewise.
        epochs: passes over the training data, counted from the very beginning, also when resuming.
        lr: learning rate; 0 takes the optimizer's default.
        out: directory of the results; ``resume``: a directory to go on from, empty for a fresh start.
        label: of this run within ``out``.
    """

    model: str
    data: str
    strategy: Strategy
    epochs: int = 10
    lr: float = 0.0
    seed: int = 0
    out: str = "runs/train"
    resume: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UserError(f"{self.epochs} epochs", "give a whole number from 1 up")
        if self.strategy.precision != "fp32":
            raise UserError(f"train is fp32, not {self.strategy.precision}", "use autocast in your own script with attach()")
        self._check_runnable()
        if not 0 <= self.lr < float("inf"):
            raise UserError(f"learning rate {self.lr}", "give a positive number")

    def _check_runnable(self) -> None:
        """Refuse what can be predicted but not run."""
        s = self.strategy
        for what, is_on, instead in (
            (f"sharding {s.sharding}", s.sharding != "ddp", "train with sharding ddp, or with FSDP in your own script"),
            ("activation recomputation", s.recompute, "use torch.utils.checkpoint in your own model"),
            (f"{s.servers} servers", s.servers > 1, "train with 1, or with exchange sharded, in which every worker serves"),
            (f"{s.grad_accum_steps} micro steps", s.grad_accum_steps > 1, "train with 1, or with no_sync() in your own script"),
        ):
            if is_on:
                raise UserError(f"train cannot run {what}; it can be predicted", instead)

    @property
    def learning_rate(self) -> float:
        """The rate in use."""
        return self.lr or OPTIMIZERS[self.strategy.optimizer].lr

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed."""
        kept = ("model", "data", "seed")
        return {**{k: getattr(self, k) for k in kept}, "lr": self.learning_rate, **self.strategy.to_json()}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of ``to_json``."""
        data: Mapping[str, Any] = json.loads(text)
        return cls(**{**data, "strategy": Strategy(**data["strategy"])})
