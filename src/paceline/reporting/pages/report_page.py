"""Report of a run directory as one HTML file, without network access or framework, in light and dark colours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.record import Event, Metrics, RunRecord
from paceline.reporting.pages.template import filled
from paceline.reporting.text.table import step_time_error
from paceline.reporting.values import (
    DETAIL,
    TOLERANCE,
    UNKNOWN,
    accuracy_of,
    clean,
    number,
    percent,
    rate,
    relative_error,
    seconds,
    size,
    strategy_text,
    time_range,
)
from paceline.rundir import RunDir, RunDirContents, free_name


def write_report(run_dir: RunDir | str | Path) -> Path:
    """Write report.html into a run directory and return its path.

    Raises UserError when the directory holds neither a prediction nor a record, or cannot be written.
    """
    directory = run_dir if isinstance(run_dir, RunDir) else RunDir(run_dir)
    return directory.write_report(render_report(directory.read(partial=True)))


def render_report(contents: RunDirContents) -> str:
    """Render the report as HTML text. Equal contents give equal bytes."""
    return filled("reporting/report.html.j2", _context(contents))


def _context(contents: RunDirContents) -> dict[str, Any]:
    labels = contents.labels
    runs = [contents.records.get(k) or contents.predictions[k] for k in labels]
    workloads = list(dict.fromkeys(clean(run.workload) for run in runs))
    dates = [str(r.environment["date"]) for r in contents.records.values() if r.environment.get("date")]
    return {
        "title": ", ".join(workloads) or "no run",
        "names": ", ".join(map(clean, labels)),
        "date": clean(max(dates)) if dates else "",
        "tolerance": f"{TOLERANCE * 100:.0f} %",
        "cards": [_card(k, contents.predictions.get(k), contents.records.get(k)) for k in labels],
        "findings": _findings(contents),
        "timeline": timeline_picture(contents),
        "accuracy": curve_picture(contents.records, "accuracy"),
        "loss": curve_picture(contents.records, "loss"),
        "learning": _learning(contents),
        # what there is first, then what there is not
        "histograms": sorted(
            (histogram_picture(k, r, n) for n, (k, r) in enumerate(contents.records.items())),
            key=lambda picture: not picture["svg"],
        ),
        "details": [_detail(k, contents.predictions.get(k), contents.records.get(k)) for k in labels],
        "environment": _environment(contents.records),
        "clusters": {clean(k): _flat(v) for k, v in contents.clusters.items()},
        "assumptions": _assumptions(contents),
    }


def _card(label: str, predicted: Metrics | None, measured: RunRecord | None) -> dict[str, str]:
    run = measured or predicted
    assert run is not None  # a label comes from one of the two
    error, verdict = step_time_error(predicted, measured)
    verdicts = {"ok": f"within {TOLERANCE * 100:.0f} %", "off": f"not within {TOLERANCE * 100:.0f} %"}
    return {
        "label": clean(label),
        "kind": "measured" if measured else "predicted, not measured",
        "step": seconds(run.step_time_s),
        "range": time_range(run.low_s, run.high_s, run.step_time_s),
        "rate": rate(run.samples_per_s),
        "wire": size(run.wire_bytes_per_device),
        "accuracy": percent(accuracy_of(run)),
        "predicted": seconds(predicted.step_time_s) if predicted else "",
        "error": f"{percent(error, signed=True)}, {verdicts[verdict]}".replace(" %", "\N{NO-BREAK SPACE}%")
        if verdict in verdicts
        else "",
        "verdict": verdict,
    }


def _findings(contents: RunDirContents) -> list[str]:
    """Return one sentence for each later run that compares it with the first: measured if both are, else predicted."""
    measured = len(contents.records) > 1
    source = "Measured" if measured else "Predicted"
    runs: Mapping[str, Metrics] = contents.records if measured else contents.predictions
    if len(runs) < 2:
        return []
    (base_label, base), *others = runs.items()
    findings = []
    for label, run in others:
        points = (accuracy_of(run) - accuracy_of(base)) * 100
        side = "lower" if points < 0 else "higher"
        parts = [
            _times(base.step_time_s, run.step_time_s, "the step is", "shorter", "longer"),
            _times(base.wire_bytes_per_device, run.wire_bytes_per_device, "a worker sends", "fewer bytes", "more"),
            f"the final accuracy is {abs(points):.1f} percentage points {side}" if math.isfinite(points) else "",
        ]
        text = ", ".join(p for p in parts if p)
        if text:
            findings.append(f"{source}: {clean(label)} against {clean(base_label)}: {text}.")
    return findings


def _times(base: float, other: float, start: str, less: str, more: str) -> str:
    if not (math.isfinite(base) and math.isfinite(other)) or base <= 0 or other <= 0:
        return ""
    factor = base / other
    return f"{start} {number(max(factor, 1 / factor))} times {less if factor >= 1 else more}"


def _picture(svg: str = "", missing: str = "", notes: list[str] | None = None, caption: str = "") -> dict[str, Any]:
    """Return markup for the template: the figure (drawn here, its texts escaped) or the reason for its absence."""
    from markupsafe import Markup

    return {"svg": Markup(svg), "missing": missing, "notes": notes or [], "caption": caption}


def timeline_picture(contents: RunDirContents) -> dict[str, Any]:
    """Return all timelines, and a note for each missing one."""
    from paceline.reporting.figures.timeline import MAX_BARS, StepTimeline, draw, one_rank

    steps, notes = [], []
    for label in contents.labels:
        sources: tuple[tuple[str, Mapping[str, Metrics], Mapping[str, tuple[Event, ...]], str], ...] = (
            ("predicted", contents.predictions, contents.predicted, "predicted.trace.json"),
            ("measured", contents.records, contents.measured, "measured.trace.json"),
        )
        for kind, runs, timelines, file in sources:
            run = runs.get(label)
            events = one_rank(timelines.get(label) or (run.timeline if run else ()))
            name = f"{clean(label, 40)}, {kind}"
            if run is None:
                notes.append(f"{name}: no such run in this directory, so there is no timeline.")
            elif not events:
                notes.append(f"{name}: {file} has no events of this run.")
            else:
                steps.append(StepTimeline(f"{name}: {seconds(run.step_time_s)}", events, run.step_time_s))
                if max(Counter(e.lane for e in events).values()) > MAX_BARS:
                    notes.append(f"{name}: only the first {MAX_BARS} bars of a row are drawn; {file} has all.")
    if not steps:
        return _picture(missing="No timeline was kept.", notes=notes)
    label = "Timeline of one training step: " + "; ".join(step.title for step in steps)
    return _picture(draw(steps, label), notes=notes)


def curve_picture(records: Mapping[str, RunRecord], key: str) -> dict[str, Any]:
    """Draw accuracy or loss over epochs, one line for each measured run."""
    from paceline.reporting.figures.report_figures import curves

    title = {"accuracy": "accuracy on held-out samples", "loss": "training loss, mean over the epoch"}[key]
    points: dict[str, list[tuple[float, float]]] = {}
    for label, record in records.items():
        points[free_name(clean(label, 30), points)] = _points(record, key)  # names cut to the same start stay apart
    drawn = {label: p for label, p in points.items() if p}
    notes = [f"{label}: the record has no {key} per epoch." for label in points if label not in drawn]
    if not drawn:
        why = "no epoch was recorded" if records else "nothing was measured: record.jsonl is missing"
        return _picture(missing=f"No {key} curve: {why}.", notes=notes)
    show = percent if key == "accuracy" else number
    ends = "; ".join(f"{label} ends at {show(p[-1][1])} after epoch {p[-1][0]:g}" for label, p in drawn.items())
    return _picture(curves(drawn, key, f"{title} over epochs: {ends}", title, key == "accuracy"), notes=notes)


def _learning(contents: RunDirContents) -> dict[str, Any]:
    """Return sentences and figures on rates, batch and layers of every run with such records."""
    from paceline.reporting.learning import noise_curve, sentences, trust_curve

    labels = list(dict.fromkeys([*contents.records, *contents.trust]))
    sentences_of = {clean(k): sentences(contents.records.get(k), contents.trust.get(k)) for k in labels}
    drawn = [noise_curve(contents.records)]
    drawn += [trust_curve(history, f"trust-{n}", clean(k, 30)) for n, (k, history) in enumerate(contents.trust.items())]
    return {"sentences": {k: v for k, v in sentences_of.items() if v}, "pictures": [_picture(svg) for svg in drawn if svg]}


def _points(record: RunRecord, key: str) -> list[tuple[float, float]]:
    pairs = [(entry.get("epoch", n), entry.get(key)) for n, entry in enumerate(record.curve, start=1)]
    return [(float(x), float(y)) for x, y in pairs if isinstance(y, int | float) and math.isfinite(y)]


def histogram_picture(run: str, record: RunRecord, n: int) -> dict[str, Any]:
    """Draw the gradient of one layer at each stage of the codec, or return why there is none."""
    from paceline.reporting.figures.report_figures import PANELS, histogram

    data, name = record.histogram, clean(run, 40)
    problem = histogram_problem(data)
    if problem:
        return _picture(missing=f"{name}: {problem}")
    caption = f"{name}: layer {clean(data.get('layer', UNKNOWN))}, step {clean(data.get('step', UNKNOWN))}"
    caption += f", worker {clean(data.get('rank', UNKNOWN))}"
    for key, symbol in (("sigma", "standard deviation σ"), ("scale", "scale s")):
        value = data.get(key)
        caption += f", {symbol} = {value:.3g}" if isinstance(value, int | float) and value else ""
    stages = ", ".join(p for p in PANELS if p in data["panels"])
    return _picture(
        histogram(data, f"gradient-{n}", f"Histograms of the gradient. {caption}. Panels: {stages}"), caption=caption
    )


def histogram_problem(data: Mapping[str, Any]) -> str:
    """Return why a histogram cannot be drawn; empty if it can."""
    if not data:
        return "the record has no gradient histogram."
    panels = data.get("panels")
    if not isinstance(panels, Mapping) or not panels:
        return "the record's histogram has no panels."
    for name, panel in panels.items():
        try:
            edges, counts = [float(x) for x in panel["edges"]], [float(x) for x in panel["counts"]]
        except (KeyError, TypeError, ValueError):
            return f"panel {clean(name)} of the record's histogram has no edges or counts."
        rising = all(a < b for a, b in pairwise(edges))
        if len(edges) != len(counts) + 1 or len(counts) == 0 or not rising or not all(map(math.isfinite, edges + counts)):
            return f"panel {clean(name)} of the record's histogram is not a histogram: edges and counts do not fit."
    return ""


def _detail(label: str, predicted: Metrics | None, measured: RunRecord | None) -> dict[str, Any]:
    run = measured or predicted
    assert run is not None
    notes = []
    if predicted is None:
        notes.append("Not predicted: prediction.json has no such run; paceline predict --out adds it.")
    if measured is None:
        notes.append("Not measured: record.jsonl has no such run; paceline train --out adds it.")
    else:
        notes.append(f"{measured.epochs} epochs, {measured.steps} steps, seed {measured.seed}.")
        if measured.nonfinite_steps:
            notes.append(f"{measured.nonfinite_steps} steps went dense or were skipped: a gradient was NaN or infinite.")
    rows = []
    for row in DETAIL:
        cells = [row.text(r) if r else (UNKNOWN, "") for r in (predicted, measured)]
        difference = relative_error(row.get(predicted), row.get(measured)) if predicted and measured else math.nan
        shown = percent(difference, signed=True) if math.isfinite(difference) else "–"
        rows.append({"name": row.name, "predicted": cells[0], "measured": cells[1], "difference": shown})
    bottlenecks = [(clean(r.bottleneck) or UNKNOWN) if r else UNKNOWN for r in (predicted, measured)]
    same = "same" if bottlenecks[0] == bottlenecks[1] != UNKNOWN else "differs" if UNKNOWN not in bottlenecks else "–"
    rows.append({"name": "bottleneck", "predicted": (bottlenecks[0], ""), "measured": (bottlenecks[1], ""), "difference": same})
    return {"label": clean(label), "strategy": strategy_text(run.strategy), "notes": notes, "rows": rows}


def _environment(records: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """Return the environments with the runs of each; runs that differ only in the date share one."""
    groups: dict[str, dict[str, Any]] = {}
    for label, record in records.items():
        rows = {k: v for k, v in _flat(record.environment).items() if k != "date"}
        group = groups.setdefault(repr(rows), {"runs": [], "dates": [], "rows": rows})
        group["runs"].append(clean(label))
        date = clean(record.environment.get("date", "date unknown"))
        group["dates"] += [date] if date not in group["dates"] else []
    return list(groups.values())


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested mappings: ``{"link": {"rate": 1}}`` becomes ``{"link rate": "1"}``."""
    out: dict[str, str] = {}
    for key, value in data.items():
        name = f"{prefix}{clean(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            out |= _flat(value, name + " ")
        else:
            out[name] = clean(value) or UNKNOWN
    return out


def _assumptions(contents: RunDirContents) -> list[tuple[str, list[str]]]:
    sources: tuple[tuple[str, Mapping[str, Metrics]], ...] = (
        ("predicted", contents.predictions),
        ("measured", contents.records),
    )
    return [
        (f"{clean(label)}, {kind}", [clean(a, 1000) for a in run.assumptions])
        for kind, runs in sources
        for label, run in runs.items()
        if run.assumptions
    ]
