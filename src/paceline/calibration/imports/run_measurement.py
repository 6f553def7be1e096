"""Measurement of one run, as a file states it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.calibration.imports.device_state import DeviceState
from paceline.calibration.imports.step_times import MeasuredSteps, SteadySteps, summary
from paceline.errors import UserError
from paceline.units import digits3, format_memory, format_seconds

USUAL_FACTS: Mapping[str, str] = {
    "global_batch": "batch",
    "seq_len": "length",
    "world_size": "number of devices",
    "device": "device",
    "precision": "precision",
}
"""Facts that a comparison with a prediction needs, and their words."""


@dataclass(frozen=True)
class RunFact:
    """A fact that a file states.

    Attributes:
        value: as in a table of jobs.
        place: where the file states it, such as ``line 12``; empty for a derived fact.
        text: the line, or the rule that derives the fact.
    """

    value: str
    place: str = ""
    text: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.text}" if self.text else self.place


@dataclass(frozen=True, kw_only=True)
class RunMeasurement:
    """Measurement of one run. Each part is optional.

    Attributes:
        file: name of the file.
        kind: format of the file, such as ``torchtitan log``.
        framework: software that wrote it; empty if unknown.
        basis: quantity from which the step times follow.
        steps: times of the steps, in order; None without step times.
        lacks: why there are no step times, and the next step.
        facts: facts about the run by column of a table of jobs, and ``world_size``, ``micro_batch``, ``tokens_per_step``,
            ``device_tokens_per_step``.
        rates: medians of the rates that the file states: ``tokens_per_s``, ``device_tokens_per_s``, ``samples_per_s``,
            ``device_tflops``.
        memory_bytes: peak memory of one device.
        devices: states of devices (nvidia-smi).
        notes: doubts and repairs, one sentence each.
        warmup: as for ``MeasuredSteps.steady``.
    """

    file: str
    kind: str
    framework: str = ""
    basis: str = ""
    steps: MeasuredSteps | None = None
    lacks: tuple[str, str] = ("", "")
    facts: Mapping[str, RunFact] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float | None = None
    devices: Sequence[DeviceState] = ()
    notes: Sequence[str] = ()
    warmup: int | None = None

    def _count(self, name: str) -> int | None:
        fact = self.facts.get(name)
        return int(float(fact.value)) if fact and fact.value.replace(".", "", 1).isdigit() else None

    @property
    def global_batch(self) -> int | None:
        """Samples of a step over all devices."""
        return self._count("global_batch")

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sequence."""
        return self._count("seq_len")

    @property
    def world_size(self) -> int | None:
        """Number of devices."""
        return self._count("world_size") or (len(self.devices) or None)

    @property
    def device(self) -> str | None:
        """Name of the device."""
        if fact := self.facts.get("device"):
            return fact.value
        return self.devices[0].name or None if self.devices else None

    @property
    def peak_memory_bytes(self) -> float | None:
        """Peak memory of one device."""
        used = [state.memory_bytes for state in self.devices if state.memory_bytes is not None]
        return self.memory_bytes if self.memory_bytes is not None else max(used, default=None)

    @property
    def steady(self) -> SteadySteps:
        """Steps without warm-up and pauses. Raises UserError without step times."""
        return self.measured_steps.steady(self.warmup)

    @property
    def measured_steps(self) -> MeasuredSteps:
        """All steps. Raises UserError without step times."""
        if self.steps is not None:
            return self.steps
        if self.devices:
            states = f"{self.took()}; it states no step times"
            raise UserError(f"{self.file} is the output of {states}", "give a log of the run; paceline diagnose takes both")
        raise UserError(*self.lacks)

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step; None without step times."""
        return None if self.steps is None else summary(self.steady.step_s)[0]

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens of a step over all devices."""
        if total := self._count("tokens_per_step"):
            return float(total)
        if self.global_batch and self.seq_len:
            return float(self.global_batch * self.seq_len)
        each = self._count("device_tokens_per_step")
        return float(each * self.world_size) if each and self.world_size else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second over all devices."""
        if self.step_s and self.tokens_per_step:
            return self.tokens_per_step / self.step_s
        if rate := self.rates.get("tokens_per_s"):
            return rate
        each = self.rates.get("device_tokens_per_s")
        return each * self.world_size if each and self.world_size else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second over all devices."""
        return self.global_batch / self.step_s if self.step_s and self.global_batch else self.rates.get("samples_per_s")

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of usual facts that the file does not state."""
        return tuple(
            name
            for name in USUAL_FACTS
            if name not in self.facts and not (name == "device" and self.device) and not (name == "world_size" and self.devices)
        )

    def took(self, known: Collection[str] = ()) -> str:
        """Describe on one line the kind of file, the steps taken, and the missing facts except ``known`` ones."""
        parts = [self.kind]
        if self.steps is not None:
            parts.append(f"{_steps_text(self.steady)}{f', by {self.basis}' if self.basis else ''}")
        elif not self.devices:
            parts += [f"{digits3(rate)} {name.replace('_', ' ')}" for name, rate in self.rates.items()]
        parts += [state.describe() for state in self.devices[:1]]
        if len(self.devices) > 1:
            parts[-1] += f" (first of {len(self.devices)} devices)"
        if self.memory_bytes is not None:
            parts.append(f"peak memory {format_memory(self.memory_bytes)}")
        missing = [USUAL_FACTS[name] for name in self.missing if name not in known]
        if missing and not self.devices:
            parts.append(f"not stated: {', '.join(missing)}")
        return "; ".join(parts)


def _steps_text(steady: SteadySteps) -> str:
    median, low, high = summary(steady.step_s)
    if steady.mean_of:
        return f"mean step {format_seconds(median)} of about {steady.mean_of:,} steps"
    left_out = [
        f"{number} {words}" for number, words in ((steady.warmup, "at the start"), (steady.pauses, "as pauses")) if number
    ]
    without = f" ({' and '.join(left_out)} left out)" if left_out else ""
    count = len(steady.step_s)
    spread = f" (half between {format_seconds(low)} and {format_seconds(high)})" if count > 2 else ""
    return f"{count:,} step time{'s' * (count != 1)}{without}, median {format_seconds(median)}{spread}"
