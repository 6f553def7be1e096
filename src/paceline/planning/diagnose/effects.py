"""Predicted step with a cause: the same predictor's answer to the changed question, as one or several variants."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.calibration.uncertainty import Z80, log_spread
from paceline.errors import UserError
from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.causes import Cause
from paceline.planning.diagnose.measured import Speed
from paceline.planning.diagnose.question import CONDITIONS, VALUES, RunQuestion, line_text
from paceline.prediction import Prediction
from paceline.units import digits3

NOTHING = 1.02
"""A cause that changes no step by this factor is none."""
_POINTS = 41
"""Points of the distribution of an unknown factor, over 2.5 standard deviations to each side."""
_SPARSE = ("Ampere", "Ada", "Hopper", "Blackwell", "CDNA 3", "CDNA 4")
"""Families of architectures whose datasheets state a peak with sparsity too, twice the dense one."""
SPEED_CONDITIONS: Mapping[str, Callable[[Speed], bool]] = {
    "steps": lambda speed: speed.kind in ("seconds", "steps", "slower"),
    "mfu": lambda speed: speed.kind == "mfu",
    "not each": lambda speed: not speed.each and speed.kind != "mfu",
}
"""Conditions of causes on the measured speed."""
OUT_OF_MEMORY = 0.1
"""Factor on the weight of a change that needs more memory than a device has, since the run did fit. An assumption."""
MEMORY_ERROR = 1.05
"""Factor by which a prediction of memory may be too large."""
_BAR = re.compile(r"\bit(er|eration)?s?\s*/\s*s|s\s*/\s*it", re.IGNORECASE)
"""Forms of a progress bar, which switches from one to the other."""
_WORD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A question and its measured speed, in seconds of a step."""

    question: RunQuestion
    speed: Speed
    seconds: float


@dataclass(frozen=True, slots=True)
class Guess:
    """Median of a step's seconds and the standard deviation of its logarithm."""

    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class Variant:
    """A cause at one value: its share of the cause, the predicted step of each case, its words, and the changed options.

    Attributes:
        free: True if its size is unknown, so that it may explain a gap of any size.
    """

    weight: float
    guesses: tuple[Guess, ...]
    words: Mapping[str, str]
    options: tuple[str, ...] = ()
    free: bool = False


def holds(condition: str, case: MeasuredCase) -> bool:
    """Return whether a run meets a condition, of its question or of its measured speed."""
    of_speed = SPEED_CONDITIONS.get(condition)
    return of_speed(case.speed) if of_speed else CONDITIONS[condition](case.question)


def base_guess(p: Prediction) -> Guess:
    """Return a predicted step and its spread."""
    return Guess(p.step_time_s, log_spread(p.low_s, p.high_s))


def variants(cause: Cause, cases: Sequence[MeasuredCase]) -> tuple[Variant, ...]:
    """Return the variants of a cause that apply to the first case and change the step of at least one."""
    if not all(holds(name, cases[0]) for name in cause.when):
        return ()
    base = [base_guess(case.question.step) for case in cases]
    made = [*_tried(cause, cases, base), *_hosted(cause, cases, base), *_read(cause, cases, base)]
    made = [variant for variant in made if _moves(variant, base)]
    exact = [replace(variant, weight=variant.weight / len(made)) for variant in made]
    slowed = () if exact and cause.fallback else _slowed(cause, cases, base)
    free = [variant for variant in slowed if _moves(variant, base)]
    half = 0.5 if exact and free else 1.0
    return tuple(replace(variant, weight=variant.weight * half) for variant in (*exact, *free))


def _moves(variant: Variant, base: Sequence[Guess]) -> bool:
    return any(
        abs(math.log(new.seconds / old.seconds)) > math.log(NOTHING) for new, old in zip(variant.guesses, base, strict=True)
    )


def _tried(cause: Cause, cases: Sequence[MeasuredCase], base: Sequence[Guess]) -> Iterator[Variant]:
    """Yield the predicted steps of the changed questions."""
    tries = cause.tries or ((),) * bool(cause.predictor)
    for texts in tries:
        names = sorted({name for text in texts for name in _WORD.findall(text)})
        values: Sequence[str] = VALUES[names[0]](cases[0].question) if names else ("",)
        for index, value in enumerate(values):
            guesses, weight = [], 1.0
            for case, old in zip(cases, base, strict=True):
                own = VALUES[names[0]](case.question) if names else ("",)
                if index >= len(own):
                    guesses.append(old)
                    continue
                step, factor = _changed(
                    cause, case.question, [text.format(**dict.fromkeys(names, own[index])) for text in texts]
                )
                guesses.append(step or old)
                weight *= factor
            options = tuple(text.format(**dict.fromkeys(names, value)) for text in texts)
            yield Variant(weight, tuple(guesses), _words(names, value, cases[0].question, options), options)


def _changed(cause: Cause, question: RunQuestion, texts: Sequence[str]) -> tuple[Guess | None, float]:
    """Return the step of a changed question, None if the change is impossible there, and a factor on its weight by memory."""
    try:
        other = question.changed([parse_change(text) for text in texts]) if texts else question
        if cause.predictor:
            other = replace(other, predictor=other.predictor.changed(**cause.predictor))
        guess = base_guess(other.step)
    except UserError:
        return None, 1.0
    has, needed, before = question.cluster.device.memory.value, other.step.memory_bytes, question.step.memory_bytes
    factor = OUT_OF_MEMORY if cause.needs_memory and needed > MEMORY_ERROR * max(has, before) else 1.0
    return (replace(guess, seconds=guess.seconds * question.micro_steps) if cause.repeats else guess), factor


def _hosted(cause: Cause, cases: Sequence[MeasuredCase], base: Sequence[Guess]) -> Iterator[Variant]:
    """Yield the steps on a host that needs longer to launch a kernel."""
    for factor in cause.host:
        guesses = []
        for case, old in zip(cases, base, strict=True):
            plain = case.question.predictor.uncorrected
            if plain.calibration is not None or isinstance(plain.constants, tuple):
                guesses.append(old)
                continue
            slow = replace(
                plain.typical, host_s=plain.typical.host_s * factor, launch_s=_scaled(plain.typical.launch_s, factor)
            )
            other = replace(case.question, predictor=replace(plain, constants=slow))
            guesses.append(base_guess(other.step))
        yield Variant(1.0, tuple(guesses), {"factor": digits3(factor)})


def _scaled(seconds: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: value * factor for name, value in seconds.items()}


def _read(cause: Cause, cases: Sequence[MeasuredCase], base: Sequence[Guess]) -> Iterator[Variant]:
    """Yield the step that the measured number would describe if it is read as the cause says."""
    factors = [_reading(cause.reading, case) for case in cases]
    if cause.reading and factors[0] != 1.0:
        inverse = cases[0].speed.kind == "steps"
        words = {"stated": "it/s" if inverse else "s/it", "inverse": "s/it" if inverse else "it/s"}
        yield Variant(1.0, tuple(replace(g, seconds=g.seconds * f) for g, f in zip(base, factors, strict=True)), words)


def _reading(reading: str, case: MeasuredCase) -> float:
    """Return the factor by which a step seems longer under another reading of its number; 1 if it has none."""
    speed, question = case.speed, case.question
    devices, rate = question.cluster.world_size, speed.kind in ("tokens", "samples")
    if reading == "each":
        return float(devices) if rate and not speed.each else 1.0
    if reading == "total":
        return 1.0 / devices if rate and speed.each else 1.0
    if reading == "sparse":
        return 2.0 if speed.kind == "mfu" and question.cluster.device.architecture.startswith(_SPARSE) else 1.0
    if reading == "micro":
        return 1.0 / question.micro_steps
    return case.seconds**2 if reading == "inverse" and _BAR.search(speed.text) else 1.0


def _slowed(cause: Cause, cases: Sequence[MeasuredCase], base: Sequence[Guess]) -> Iterator[Variant]:
    """Yield the steps under a factor of unknown size, at points of its distribution."""
    bounds = cause.delivers.get("images" if cases[0].question.of_images else "tokens", cause.slows)
    if not bounds:
        return
    low, high = map(math.log, bounds)
    middle, spread = (low + high) / 2, (high - low) / (2 * Z80)
    at = [-2.5 + 5 * k / (_POINTS - 1) for k in range(_POINTS)]
    density = [math.exp(-z * z / 2) for z in at]
    for z, height in zip(at, density, strict=True):
        factor = math.exp(middle + spread * z)
        if cause.delivers:
            words = {"rate": _rate_text(factor, cases[0].question)}
            guesses = tuple(_fed(factor, case, guess) for case, guess in zip(cases, base, strict=True))
        elif cause.faster != (factor < 1):
            continue
        else:
            words = {"factor": digits3(factor)}
            guesses = tuple(_slow(cause, factor, case, guess) for case, guess in zip(cases, base, strict=True))
        yield Variant(height / sum(density), guesses, words, free=True)


def _slow(cause: Cause, factor: float, case: MeasuredCase, guess: Guess) -> Guess:
    if cause.of == ("step",):
        return replace(guess, seconds=guess.seconds * factor)
    waits = sum(case.question.step.exposed.get(name, 0.0) for name in cause.of)
    return replace(guess, seconds=guess.seconds + (factor - 1) * waits)


def _fed(rate: float, case: MeasuredCase, guess: Guess) -> Guess:
    """Return the step if each node gets so many images or tokens a second."""
    question = case.question
    amount = question.strategy.global_batch_size * (question.workload.tokens or 1)
    return replace(guess, seconds=max(guess.seconds, amount / (rate * question.cluster.num_nodes)))


def _rate_text(rate: float, question: RunQuestion) -> str:
    total = rate * question.cluster.num_nodes
    return f"{digits3(total)} {'samples' if question.of_images else 'tokens'}/s"


def _words(names: Sequence[str], value: str, question: RunQuestion, options: Sequence[str]) -> dict[str, Any]:
    words = dict.fromkeys(names, value)
    if names and names[0] in ("tcp", "slower"):
        words["speed"] = line_text(value)
    if any(text.startswith("nodes=1") for text in options):
        words["devices"] = "one" if len(options) > 1 else f"one node of {question.cluster.num_nodes}"
    return words
