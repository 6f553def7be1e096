"""Screen of a diagnosis: the finding, the causes in order, and what proves each."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.planning.diagnose.diagnosis import Diagnosis, Explanation, times
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading
from paceline.reporting.values import seconds

SHOWN = 5
"""Causes in the answer; ``--why`` shows all."""
PROVED = 3
"""Causes whose proof is in the answer."""
LEAST = 0.02
"""Score below which a cause is only behind ``--why``."""
WAITS = 3


def diagnosis_screen(diagnosis: Diagnosis) -> Screen:
    """Return the screen of a diagnosis, with all causes behind ``--why``."""
    shown = _shown(diagnosis)
    first = f"; {shown[0].title} ({shown[0].score:.0%})" if shown else ""
    return Screen(
        title=diagnosis.headline,
        answer=tuple(_answer(diagnosis, shown)),
        brief=f"{diagnosis.headline.rstrip('.')}{first}",
        why=tuple(_why(diagnosis)),
        why_holds="every cause with its score, sign, proof and remedy",
    )


def _shown(diagnosis: Diagnosis) -> list[Explanation]:
    likely = [cause for cause in diagnosis.causes if cause.score >= LEAST]
    return (likely or list(diagnosis.causes))[:SHOWN]


def _answer(diagnosis: Diagnosis, shown: list[Explanation]) -> Iterator[Block]:
    step = diagnosis.compared[0].prediction
    if not step.fits:
        yield Paragraph(f"As asked: {step.headline} The run fits, so state what saves memory in it.", "warning")
    for other in diagnosis.compared[1:]:
        yield Paragraph(f"With {other.question}: {other.figures}, {times(other.ratio)} the prediction.")
    yield from (Paragraph(f"Seen: {fact}.", hang=6) for fact in diagnosis.evidence)
    waits = ", ".join(f"{name} {share:.0%}" for name, share in list(diagnosis.waits.items())[:WAITS])
    yield Paragraph(f"The predicted step waits for: {waits}.")
    yield GAP
    if not shown:
        yield Paragraph("Nothing has to be explained. paceline plan says what would be faster.")
        return
    yield heading(_lead(diagnosis))
    yield Table(("", "a step with it", "explains", "score"), [_row(cause) for cause in shown])
    yield GAP
    yield heading("Prove it:")
    for number, cause in enumerate(shown[:PROVED], 1):
        yield Paragraph(f"{number}. {cause.proof}", indent=0, hang=3)
        yield Paragraph(f"Sign: {cause.sign}. Then: {cause.fix}.", indent=3)
    if len(diagnosis.compared) == 1:
        yield GAP
        yield Paragraph("A second measurement narrows it: --also 'nodes=1: ...' or --also 'global-batch=8: ...'.", "faint")


def _lead(diagnosis: Diagnosis) -> str:
    if diagnosis.finding == "slower":
        return "Causes that would explain it, the most probable first:"
    if diagnosis.finding == "faster":
        return "Parts of the question that may be misstated, the most probable first:"
    return "Nothing has to be wrong. If it should be faster still, the most probable first:"


def _row(cause: Explanation) -> tuple[str, ...]:
    title = f"{cause.title} (in the prediction)" if cause.inside else cause.title
    share = f"{cause.explained:.0%} of it" if cause.inside else "any size" if cause.free else f"{cause.explained:.0%}"
    return title, seconds(cause.step_time_s), share, f"{cause.score:.0%}"


def _why(diagnosis: Diagnosis) -> Iterator[Block]:
    yield heading("All causes:")
    rows = [(*_row(cause), f"{cause.sign}. {cause.proof}. {cause.fix}") for cause in diagnosis.causes]
    yield Table(("", "a step with it", "explains", "score"), [row[:4] for row in rows], notes=[row[4] for row in rows])
    yield Paragraph(
        "A score is how often public threads name the cause, times how well the predicted step with it agrees with the "
        "measured one, as a share of all causes. 'any size' marks a cause whose size is unknown."
    )
