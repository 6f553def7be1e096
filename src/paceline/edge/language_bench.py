"""Measurements of a language model's files on one runtime, in turns with the whole model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.language_forms import form_forecasts, forms_said
from paceline.edge.language_settings import LanguageRun, Say
from paceline.edge.weights_forecast import WeightsForecast
from paceline.errors import UserError
from paceline.language_record import LESS, SMALLER, WHOLE, LanguageMeasurement
from paceline.slimming.language.checkpoint import Checkpoint, TextParts
from paceline.slimming.latency.token_times import TokenLatency, TokenRunner
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, WeightForm

SESSIONS = 3
"""Sessions whose median ratio counts. A smaller decoder met its budget in one session and missed it by 5 % in the next, on two
cores with other work."""
HELD_OUT = 128
"""Most windows of the held-out text that perplexities are of, the same for all files."""
STEMS = {WHOLE: "whole", SMALLER: "model", LESS: "less-removed"}
"""Names of their files in fewer bits."""


@dataclass(frozen=True)
class Contender:
    """A model with its fp32 file, and the forms of the weights that are measured."""

    model: nn.Module
    file: Path
    forms: tuple[WeightForm, ...]


@dataclass(frozen=True)
class LanguageBench:
    """A language model on the run's runtime, against which smaller ones are measured.

    Attributes:
        whole: file of the whole model. ``perplexities``: of the files so far.
    """

    run: LanguageRun
    checkpoint: Checkpoint
    whole: Path
    perplexities: dict[Path, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: LanguageRun, checkpoint: Checkpoint, drafts: Path) -> LanguageBench:
        """Export the whole model."""
        bench = cls(run, checkpoint, drafts / f"whole{run.runtime.target.suffix}")
        bench.export(checkpoint.model, bench.whole)
        return bench

    def export(self, model: nn.Module, file: Path) -> Path:
        """Export a model to a file of the runtime."""
        return self.run.runtime.export(model, file, self.run.longest)

    def latencies(self, files: Mapping[str, str | Path]) -> dict[str, TokenLatency]:
        """Measure files by name, in turns with the first."""
        return self.run.runtime.latencies(files, self.checkpoint.vocabulary, **self.run.timing)

    def cost(self, file: Path, whole_s: float) -> float:
        """Return the measured cost of a file in the budget's unit.

        Args:
            whole_s: latency of the whole model before, which the measured ratio multiplies.
        """
        if not self.run.budget.phase:
            return float(file_bytes(file))
        ratios: list[float] = []
        for _ in range(SESSIONS):
            times = self.latencies({WHOLE: self.whole, SMALLER: file})
            before, after = (getattr(times[name], self.run.budget.phase).median_s for name in (WHOLE, SMALLER))
            ratios.append(after / before)
        return float(whole_s * statistics.median(ratios))

    def perplexity(self, file: Path, parts: TextParts) -> float:
        """Return the perplexity of a file on the held-out text. It is measured once."""
        if file not in self.perplexities:
            program = self.run.runtime.open(file)
            self.perplexities[file] = program.perplexity(parts.test.numpy(), self.run.context, HELD_OUT)
        return self.perplexities[file]

    def fewer_bits(self, parts: TextParts, say: Say) -> tuple[WeightsForecast, ...]:
        """Time the whole model in fewer bits, and say whether that alone meets the budget."""
        files: dict[WeightForm, tuple[Path, int]] = {}
        for form in self.run.forms:
            with suppress(UserError):  # said with the measurements
                file = in_form(self.whole, WHOLE, form)
                files[form] = file, file_bytes(file)
        if files:
            say("timing fewer bits of the whole model, before anything is trained")
        found = form_forecasts(self.run.budget, self.whole, files, self.latencies)
        losses: dict[WeightForm, float] = {}
        if files and not self.checkpoint.random:
            fp32 = self.perplexity(self.whole, parts)
            losses = {form: self.perplexity(file, parts) / fp32 - 1 for form, (file, _) in files.items()}
        for line in forms_said(self.run.budget, found, losses):
            say(line)
        return found

    def rows(
        self, contenders: Mapping[str, Contender], parts: TextParts, goal: float
    ) -> tuple[list[LanguageMeasurement], dict[str, Path], list[str]]:
        """Return the measurements of all files in turns, the files to keep besides fp32's, and notes."""
        notes: list[str] = []
        files: dict[tuple[str, WeightForm], Path] = {}
        for name, contender in contenders.items():
            for form in contender.forms:
                try:
                    files[name, form] = contender.file if form == FP32 else in_form(contender.file, name, form)
                except UserError as error:
                    notes.append(f"There is no {form} file of the {name} model: {error.message}.")
        times = self.latencies({f"{name} {form}": file for (name, form), file in files.items()})
        budget = self.run.budget
        limit = budget_limit(budget, goal, times[f"{WHOLE} {FP32}"])
        rows = []
        for (name, form), file in files.items():
            taken, size = times[f"{name} {form}"], file_bytes(file)
            cost = getattr(taken, budget.phase).median_s if budget.phase else size
            rows.append(
                LanguageMeasurement(
                    name=name,
                    weights=str(form),
                    bits=form.bits,
                    decode_s=taken.decode.median_s,
                    decode_low_s=taken.decode.low_s,
                    decode_high_s=taken.decode.high_s,
                    prefill_s=taken.prefill.median_s,
                    perplexity=self.perplexity(file, parts),
                    parameters=sum(each.numel() for each in contenders[name].model.parameters()),
                    file_bytes=size,
                    meets=cost <= limit,
                )
            )
        return rows, {f"{name} {form}": file for (name, form), file in files.items() if form != FP32}, notes


def file_bytes(file: Path) -> int:
    """Return the bytes of a file and of its weights next to it."""
    data = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (data.stat().st_size if data.is_file() else 0)


def in_form(file: Path, name: str, form: WeightForm) -> Path:
    """Return an ONNX file in a form of its weights. Raises UserError if there is none.

    Args:
        name: of its model, in ``STEMS``.
    """
    place = file.with_name(f"{STEMS[name]}.{form.file_name}.onnx")
    return place if place.is_file() else quantised(file, place, [example(file)], form)


def example(file: Path) -> tuple[Any, ...]:
    """Return inputs of an ONNX file: two tokens and an empty cache."""
    return torch.zeros(1, 2, dtype=torch.long), *map(torch.from_numpy, TokenRunner(file).empty())


def budget_limit(budget: Budget, goal: float, whole: TokenLatency) -> float:
    """Return the budget by the last clock: a speed-up is relative to the whole model in the same turns."""
    limit: float = getattr(whole, budget.phase).median_s / budget.value if budget.kind == "speedup" else goal
    return limit
