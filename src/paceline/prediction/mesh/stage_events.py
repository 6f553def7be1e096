"""Bars of a step of a pipeline's critical stage: its passes, the exchange of its gradients, its update and all its waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.prediction.mesh.exchange_overlap import ExchangeBeside, exchange_events
from paceline.prediction.mesh.pipeline import Pass
from paceline.prediction.step.step_model import WholeStep
from paceline.prediction.step.timeline import input_event
from paceline.prediction.step.waits import BUBBLE, OVERLAP_LOSS, in_turn, waits
from paceline.record import Event

EXCHANGE = "wait for exchange"


def stage_events(
    step: WholeStep,
    passes: Sequence[Pass],
    parts: int,
    beside: ExchangeBeside | None,
    *,
    delay_s: float,
    tie_s: float,
    update_s: float,
    step_s: float,
) -> tuple[Event, ...]:
    """Return the bars of one stage.

    Args:
        step: its micro batches one after the other, with the exchange among its replicas.
        passes: the scheduled passes in their order, after the earliest first pass.
        parts: parts of the network on the stage.
        beside: times of an exchange that overlaps its passes; None if the exchange follows them.
        delay_s: wait of the first passes of all stages for weights.
        tie_s: seconds in which both ends of the pipeline add up the gradients of a table.
        update_s: start of the update, in seconds after the start of the step.
        step_s: seconds of the step.
    """
    gathers = _gathers_s(step) if beside is None else 0.0
    bars: list[Event] = []
    for p in passes:
        kind = "weights" if p.weights else "backward" if p.backward else "forward"
        name = f"{kind} stage {p.stage}{f' part {p.part}' if parts > 1 else ''}, micro step {p.micro_batch + 1}"
        start, seconds = delay_s + p.start_s, p.end_s - p.start_s
        waited = min(seconds, gathers / parts) if p.backward and not p.weights else 0.0
        bars += in_turn(start, [(EXCHANGE, waited)])
        bars.append(Event(name=name, lane="compute", start_s=start + waited, duration_s=seconds - waited))
    ended = delay_s + passes[-1].end_s
    own = float(step.pieces.update)
    bars.append(Event(name="optimizer", lane="compute", start_s=update_s, duration_s=own))
    if beside is None:
        bars += _exchange_tail(step, ended, update_s, tie_s)
    else:
        bars += exchange_events(beside, step.costs.exchange, delay_s)
        gathered = delay_s - beside.delay_loss_s
        bars += in_turn(0.0, [("wait for gather_update", gathered), (OVERLAP_LOSS, beside.delay_loss_s)])
        exchanged = [(EXCHANGE, beside.after_s - beside.after_loss_s), (OVERLAP_LOSS, beside.after_loss_s)]
        bars += in_turn(ended, [*exchanged, ("wait for tied table", tie_s)])
        if step.pieces.feed:
            bars.append(input_event(float(step.pieces.feed)))
            worked = update_s + own
            bars += in_turn(worked, [("wait for input", step_s - worked)] if step_s == step.pieces.feed else [])
    known = [bar for bar in bars if bar.lane == "wait"]
    idle = [bar if bar.lane == "compute" else replace(bar, lane="compute") for bar in bars if bar.lane in ("compute", "wait")]
    bubbles = waits(idle, step_s, otherwise=BUBBLE)
    return (*known, *bubbles, *(bar for bar in bars if bar.lane != "wait"))


def _gathers_s(step: WholeStep) -> float:
    """Return the wait of a micro batch for shared weights and gradients."""
    return max(0.0, float(step.schedule.micro_step) - float(step.pieces.forward + step.pieces.backward))


def _exchange_tail(step: WholeStep, ended: float, update_s: float, tie_s: float) -> Iterator[Event]:
    """Yield the exchange after the passes, and the waits until the end of the stage's own step."""
    placed, p = step.schedule, step.pieces
    after, loss = float(placed.update_start) - step.passes_s, float(placed.penalty)
    yield from in_turn(ended, [(EXCHANGE, after - loss), (OVERLAP_LOSS, loss), ("wait for tied table", tie_s)])
    left = float(placed.step - placed.gather_start)
    yield from in_turn(
        update_s + float(p.update), [("wait for gather_update", float(p.after)), ("wait for input", left - float(p.after))]
    )
    later, last = ended - step.passes_s, update_s - float(placed.update_start)
    for bar in step.events():
        if bar.lane in ("network", "codec"):
            behind = bar.start_s >= float(placed.gather_start)
            yield replace(bar, start_s=max(0.0, bar.start_s + (last if behind else later)))
        elif bar.lane == "input":
            yield bar
