"""Settings of slimming a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UserError, unknown
from paceline.language_record import WIDTHS
from paceline.slimming.language.checkpoint import TextParts
from paceline.slimming.latency.token_runtimes import TokenRuntime, token_runtime
from paceline.slimming.latency.token_times import CONTEXT, PROMPT
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4, INT8, INT8_BLOCKS, WeightForm

EPOCHS, LR, BATCH, DISTILL = 1, 5e-4, 8, 0.5
"""Defaults of the training of the smaller model: passes over the text, peak rate of AdamW, windows of a step, and the share of
the whole model's distribution in the loss."""
FORMS = (INT8, INT8_BLOCKS, INT4)
"""Forms of the weights that are measured next to fp32, on a runtime that has them."""
FOLDER = "model"
"""Folder of the smaller model in Hugging Face's format, in the directory of the results."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LanguageRun:
    """Settings of slimming a language model.

    Attributes:
        model: folder of a checkpoint. ``text``: a text file. ``out``: directory of the results.
        budget: of a phase, or a size; a plain latency or speed-up is of ``decode``.
        context: tokens in the cache when one is decoded, and of a window of the text. ``prompt``: tokens of the prefill.
        epochs: passes of the smaller model over the text; 0: none, only measure.
        distill: share of the whole model's distribution in the loss. ``lr``: peak rate.
        weights: forms of the weights next to fp32; None: ``FORMS`` if the runtime has them.
        writes: whether ``out`` gets the results.
        widths: as of ``Slim``. ``target``: runtime, one of ``TOKEN_RUNTIMES``.
    """

    model: str
    text: str
    budget: Budget
    out: str
    context: int = CONTEXT
    prompt: int = PROMPT
    threads: int = 1
    epochs: float = EPOCHS
    distill: float = DISTILL
    lr: float = LR
    seed: int = 0
    weights: tuple[WeightForm, ...] | None = None
    writes: bool = True
    widths: str = ""
    target: str = "onnxruntime"

    def __post_init__(self) -> None:
        if self.budget.kind == "accuracy":
            raise UserError(f"{self.budget} for a language model", "give decode=2x, prefill=2x or size=20MB")
        if self.budget.kind != "size" and not self.budget.phase:
            object.__setattr__(self, "budget", replace(self.budget, phase="decode"))
        for name in ("context", "prompt", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{getattr(self, name)} for `{name}`", "give a whole number from 1 up")
        if self.context < 2:
            raise UserError("a context of 1 token", "give at least 2: the text is read in windows of it")
        if self.writes and Path(self.model).resolve().is_relative_to((Path(self.out) / FOLDER).resolve()):
            raise UserError(f"{self.model} would be replaced by the smaller model", f"give another --out than {self.out}")
        if not 0 <= self.epochs < float("inf"):
            raise UserError(f"{self.epochs} epochs", "give `tune_epochs` from 0 up, such as 0.25")
        if not 0 <= self.distill <= 1:
            raise UserError(f"a share of {self.distill:g} of the teacher", "give `distill` from 0 to 1")
        if self.widths and self.widths not in WIDTHS:
            raise unknown("widths", self.widths, WIDTHS)
        if not 0 < self.lr < float("inf"):
            raise UserError(f"learning rate {self.lr}", "give a positive number")
        if self.weights and not self.runtime.forms:
            what = f"weights in {self.weights[0]} for {self.target}"
            raise UserError(what, "files in int8 and int4 are ONNX Runtime's: leave out one of the two")

    @property
    def runtime(self) -> TokenRuntime:
        """Runtime of the target. Raises UserError if decoders do not run on it, or if it is not installed."""
        return token_runtime(self.target)

    @property
    def forms(self) -> tuple[WeightForm, ...]:
        """Forms of the weights that are measured next to fp32."""
        return (FORMS if self.runtime.forms else ()) if self.weights is None else self.weights

    @property
    def timing(self) -> dict[str, Any]:
        """Numbers of tokens and threads of a measurement."""
        return {"context": self.context, "prompt": self.prompt, "threads": self.threads}

    @property
    def longest(self) -> int:
        """Largest number of tokens in a call or in the cache."""
        return max(self.context, self.prompt)

    def steps(self, parts: TextParts) -> int:
        """Return the steps of the smaller model's training."""
        every = max(1, len(parts.train) // (BATCH * self.context))
        return max(round(self.epochs * every), int(self.epochs > 0))
