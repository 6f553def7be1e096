"""Reasons why a run is slower or faster than predicted: ``diagnose(...)``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.causes import Cause, causes
from paceline.planning.diagnose.diagnosis import SAME, Compared, Diagnosis, Explanation
from paceline.planning.diagnose.effects import Guess, MeasuredCase, Variant, base_guess, holds, variants
from paceline.planning.diagnose.measured import Speed, parse_speed
from paceline.planning.diagnose.question import RunQuestion, words_of
from paceline.planning.diagnose.score import consistent, density

if TYPE_CHECKING:
    from paceline.planning.diagnose.evidence import Evidence

PAIRED = 8
"""Causes, the best first, that are combined in pairs if none explains the run alone."""
STATED = 0.3
"""Factor on the weight of a cause that contradicts what the user states about the run. An assumption."""
UNUSUAL = 0.25
"""Factor on the weight of a cause in a question that its usual conditions exclude: one of six threads on offload is of a model
that fits without. An assumption."""
WIDE = 2.0
"""Factor between the ends of a range from which a cause may hide in it."""
LEAST_WAIT = 0.1
"""Share of the predicted step from which a wait counts as a cause that is in it already."""


@dataclass(frozen=True, slots=True)
class Also:
    """A further measurement: the run with changed options, ``nodes=1`` or ``global-batch=8``, and its speed."""

    changes: tuple[str, ...]
    speed: Speed


def parse_also(text: str) -> Also:
    """Parse ``nodes=1: 12,000 tokens/s`` or ``nodes=1, global-batch=8: 0.31 s``. Raises UserError otherwise."""
    options, colon, speed = text.rpartition(": ")
    if not colon or not options.strip():
        raise UserError(f"{text!r} names no change", "write it as 'nodes=1: 12,000 tokens/s'")
    changes = tuple(part.strip() for part in options.split(",") if part.strip())
    for change in changes:
        parse_change(change)
    return Also(changes, parse_speed(speed))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A cause with its variants, its weight, and the variant that agrees best."""

    causes: tuple[Cause, ...]
    weight: float
    best: Variant
    agrees: bool
    inside: bool = False


def diagnose(question: RunQuestion, speed: Speed, also: Sequence[Also] = (), evidence: Sequence[Evidence] = ()) -> Diagnosis:
    """Compare a run with its prediction and rank the causes of the gap.

    A cause's score is the share of public threads that name it, times the density of the measured steps under the steps that
    the same predictor gives with it. Causes of two changes are tried only if none explains the run alone.

    Args:
        also: further measurements with changed options, which every cause has to explain too. On other numbers of devices the
            batch of a device stays, as launchers keep it, unless a global batch is given.
        evidence: facts that logs and monitors show.

    Raises:
        UserError: as ``Predictor.step``; an impossible change of ``also``.
    """
    cases = [_case(question, speed)]
    cases += [_case(question.changed([parse_change(text) for text in one.changes], "weak"), one.speed) for one in also]
    run = Compared(question="", text=_words(speed), measured_s=cases[0].seconds, prediction=question.step)
    names = ["", *(_title(one, case.question) for one, case in zip(also, cases[1:], strict=True))]
    compared = tuple(
        Compared(question=name, text=_words(case.speed), measured_s=case.seconds, prediction=case.question.step)
        for name, case in zip(names, cases, strict=True)
    )
    faster = run.finding == "faster"
    facts: dict[str, float] = {}
    for fact in evidence:
        facts[fact.cause] = facts.get(fact.cause, 1.0) * fact.factor
    applied = {cause: variants(cause, cases) for cause in causes().values() if cause.faster == faster}
    found = [weighed for cause, tried in applied.items() if tried and (weighed := _weigh(cause, tried, cases, facts))]
    if run.finding == "as predicted":
        hidden = run.ratio > 1 and run.prediction.high_s > WIDE * run.prediction.low_s
        found = [*(found if run.ratio > SAME or hidden else ()), *_inside(cases, facts)]
    elif not any(one.agrees for one in found):
        found += _pairs(found, applied, cases)
    ranked = _first_of_each(sorted(found, key=lambda one: -one.weight))
    total = sum(one.weight for one in ranked) or 1.0
    step = question.step
    shares = {name: seconds / step.step_time_s for name, seconds in step.exposed.items() if seconds > 0}
    return Diagnosis(
        compared=compared,
        causes=tuple(_explanation(one, one.weight / total, cases) for one in ranked),
        waits=dict(sorted(shares.items(), key=lambda item: -item[1])),
        evidence=_texts(evidence),
    )


def _first_of_each(found: Sequence[_Weighed]) -> list[_Weighed]:
    """Return each cause once: a cause may be in the prediction already, and larger than predicted."""
    first: dict[tuple[str, ...], _Weighed] = {}
    for one in found:
        first.setdefault(tuple(cause.name for cause in one.causes), one)
    return list(first.values())


def _words(speed: Speed) -> str:
    """Return the user's words for a speed that is not given in seconds, or its file."""
    return speed.text if speed.kind != "seconds" or " by " in speed.text else ""


def _title(also: Also, question: RunQuestion) -> str:
    """Return the changes of a further measurement, with the global batch that follows from them."""
    batch = f"global-batch={question.strategy.global_batch_size}"
    given = any(parse_change(text).name == "global-batch" for text in also.changes)
    return ", ".join(also.changes if given else (*also.changes, batch))


def _texts(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Return the first fact about each cause, each text once."""
    first: dict[str, str] = {}
    for fact in evidence:
        first.setdefault(fact.cause, fact.text)
    return tuple(dict.fromkeys(first.values()))


def _case(question: RunQuestion, speed: Speed) -> MeasuredCase:
    seconds = speed.seconds(question.workload, (question.cluster, question.strategy), question.step)
    return MeasuredCase(question, speed, seconds)


def _weigh(cause: Cause, tried: Sequence[Variant], cases: Sequence[MeasuredCase], facts: Mapping[str, float]) -> _Weighed:
    """Return the cause with its weight: how often it occurs, times how well it agrees."""
    measured = [case.seconds for case in cases]
    likelihoods = [variant.weight * density(measured, variant.guesses) for variant in tried]
    prior = cause.seen(cases[0].question.of_images) * facts.get(cause.name, 1.0)
    prior *= 1.0 if all(holds(name, cases[0]) for name in cause.usual) else UNUSUAL
    prior *= math.prod(factor for name, factor in cause.likelier.items() if holds(name, cases[0]))
    prior *= STATED if cases[0].question.stated.intersection(cause.settings) else 1.0
    best = max(zip(likelihoods, tried, strict=True), key=lambda pair: pair[0])[1]
    agrees = any(consistent(measured, variant.guesses) for variant in tried)
    return _Weighed((cause,), prior * sum(likelihoods), best, agrees)


def _inside(cases: Sequence[MeasuredCase], facts: Mapping[str, float]) -> Iterator[_Weighed]:
    """Yield causes that the prediction has already: the long waits of a step that is as fast as predicted."""
    base = tuple(base_guess(case.question.step) for case in cases)
    step = cases[0].question.step
    for cause in causes().values():
        share = step.exposed.get(cause.waits, 0.0) / step.step_time_s if cause.waits else 0.0
        if share >= LEAST_WAIT:
            inside = _weigh(cause, [Variant(share, base, {})], cases, facts)
            yield replace(inside, inside=True)


def _pairs(
    found: Sequence[_Weighed], applied: Mapping[Cause, Sequence[Variant]], cases: Sequence[MeasuredCase]
) -> Iterator[_Weighed]:
    """Yield pairs of causes with predicted effects; the steps of both together are those of the factors of each."""
    measured = [case.seconds for case in cases]
    base = [base_guess(case.question.step) for case in cases]
    total = sum(cause.seen(cases[0].question.of_images) for cause in applied)
    single = sorted((one for one in found if not one.best.free), key=lambda one: -one.best.guesses[0].seconds)[:PAIRED]
    for one, other in combinations(single, 2):
        guesses = tuple(
            Guess(a.seconds * b.seconds / c.seconds, max(a.spread, b.spread))
            for a, b, c in zip(one.best.guesses, other.best.guesses, base, strict=True)
        )
        both = (*one.causes, *other.causes)
        prior = math.prod(cause.seen(cases[0].question.of_images) for cause in both) / total
        words = {**one.best.words, **other.best.words}
        best = Variant(1.0, guesses, words, (*one.best.options, *other.best.options))
        yield _Weighed(both, prior * density(measured, guesses), best, consistent(measured, guesses))


def _explanation(one: _Weighed, score: float, cases: Sequence[MeasuredCase]) -> Explanation:
    question, guess = cases[0].question, one.best.guesses[0]
    base, measured = question.step.step_time_s, cases[0].seconds
    words = {**words_of(question), **one.best.words}
    gap = math.log(measured / base)
    share = math.log(guess.seconds / base) / gap if gap else 0.0
    if one.inside:
        share = one.best.weight
    return Explanation(
        name="+".join(cause.name for cause in one.causes),
        title=" and ".join(_title_of(cause, words, one.inside) for cause in one.causes),
        score=score,
        step_time_s=guess.seconds,
        explained=max(0.0, min(1.0, share)),
        free=one.best.free,
        inside=one.inside,
        options=one.best.options,
        sign="; ".join(cause.sign for cause in one.causes),
        proof="; ".join(_filled(cause.proof, words) for cause in one.causes),
        fix="; ".join(cause.fix for cause in one.causes),
    )


def _title_of(cause: Cause, words: Mapping[str, str], inside: bool) -> str:
    return f"the step waits for the {cause.waits}" if inside else _filled(cause.title, words)


def _filled(text: str, words: Mapping[str, str]) -> str:
    """Replace words in braces that have a value; other braces are code."""
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", value)
    return text
