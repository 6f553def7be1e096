"""Page of an answer as one HTML file: prediction, asynchronous job, explanation, plan or upgrade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.planning.compare.asynchronous import AsyncPrediction
from paceline.planning.compare.explain import Explained
from paceline.planning.compare.layout_view import LayoutView
from paceline.planning.compare.scaling import Lines
from paceline.planning.compare.whatif import WhatIf
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.goal import money
from paceline.record import Event, Metrics
from paceline.reporting.figures import layout_figures
from paceline.reporting.figures.answer_figures import UNFIT, ScalingPoint, front, gains, memory_bar, scaling, shares
from paceline.reporting.figures.timeline import StepTimeline, draw, merged, one_rank
from paceline.reporting.pages.template import filled
from paceline.reporting.text import asynchronous_text
from paceline.reporting.text.planning_text import (
    SAME_STRATEGY,
    batch_text,
    cost,
    devices_rows,
    explain_table,
    impossible_lines,
    likely,
    ranking_table,
    verdict,
    whatif_table,
)
from paceline.reporting.text.screen import text_of
from paceline.reporting.text.table import hourly_cost, machines_text
from paceline.reporting.text.transport_text import gains_text, steps_text
from paceline.reporting.values import clean, memory, number, percent, rate_bounds, ratio, seconds, strategy_text, time_range

NAME = "report.html"
HINT = "Point at a bar, tap it, or step through them with the arrow keys for their times."


@dataclass
class Section:
    """Part of a page: text, figures (SVG), a table, text to copy, and a list, all optional. ``folded``: shown when opened."""

    title: str
    text: str = ""
    pictures: Sequence[Any] = ()
    wide: bool = False
    lanes: bool = False
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    pre: str = ""
    items: Sequence[str] = ()
    folded: bool = False


@dataclass
class Page:
    """Contents of a page for the template. ``asked``: the question, as names and values."""

    kind: str
    title: str
    subtitle: str
    findings: Sequence[str] = ()
    ranges: str = "Ranges hold 80 %."
    cards: list[dict[str, str]] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    asked: Sequence[tuple[str, str]] = ()

    def fold(self, first: int) -> None:
        """Fold all sections but the first ones, which show the answer."""
        for section in self.sections[first:]:
            section.folded = True

    def card(self, name: str, value: str, note: str) -> None:
        """Add a number at the top."""
        self.cards.append({"name": name, "value": value, "note": note})


def write(page: Page, place: str) -> Path:
    """Write the page into the directory ``place``, or into the file ``place`` if it ends in ``.html``. Raises UserError."""
    path = Path(place) if place.endswith(".html") else Path(place) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(page), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", "choose another place for the report") from error
    return path


def render(page: Page) -> str:
    """Render the page as HTML text. Equal answers give equal bytes."""
    return filled("reporting/answer.html.j2", vars(drawn(page)))


def drawn(page: Page) -> Page:
    """Return the page with its figures as markup, drawn here with escaped texts, for the template."""
    from markupsafe import Markup

    for section in page.sections:
        section.pictures = [Markup(svg) for svg in section.pictures]
    return page


def explained_page(explained: Explained, kind: str = "explanation", would_fit: Sequence[Mapping[str, Any]] = ()) -> Page:
    """Return the page of a prediction: timeline, cost of each resource, scaling, and a measured run to compare. ``would_fit``:
    as in a command's JSON, the nearest strategies that fit if this one does not.
    """
    p = explained.prediction
    findings = [*filter(None, [p.headline]), explained.sentence, *filter(None, [steps_text(explained.by_transport)])]
    page = Page(kind, clean(p.workload), "", findings)
    page.asked = question_rows(p)
    supposed = "" if p.fits else "; as if it fitted"
    page.card("one step", seconds(p.step_time_s), time_range(p.low_s, p.high_s, p.step_time_s) + supposed)
    slow, fast = rate_bounds(p)
    page.card("throughput", f"{number(p.samples_per_s)} samples/s", f"{number(slow)} to {number(fast)}{supposed}")
    fits = "" if p.fit == "fits" else f"; it {p.fit}"
    page.card("memory of a device", memory(p.memory_bytes), f"{memory(explained.available)} available{fits}")
    if hourly := hourly_cost(p):
        million = [hourly.usd / 3600 / rate * 1e6 for rate in (p.samples_per_s, fast, slow)]
        each = f"{money(million[0])} for a million samples ({money(million[1])} to {money(million[2])}{supposed})"
        page.card("cost", f"{money(hourly.usd)} an hour", f"{each}; {hourly.listed}{hourly.terms}")
    rows = [[name, seconds(s), f"{s / p.step_time_s:.1%}", explained.speedup_text(name)] for name, s in explained.waits]
    heads = ["resource", "the step waits", "share", "if it vanished"]
    page.sections += [
        *would_fit_sections(would_fit),
        timeline_section(
            {"predicted": p, **({"measured": explained.measured} if explained.measured else {})}, explained.measured_timeline
        ),
        Section("Time by resource", explained.path, heads=heads, rows=rows),
        *(_layout(explained.layout) or [memory_section(explained)]),
        *scaling_sections(explained.scaling, int(p.strategy["world_size"])),
        Section("To paste", pre=text_of([explain_table(explained)])),
        Section("It rests on", items=[clean(a, 1000) for a in p.assumptions]),
    ]
    page.fold(len(would_fit_sections(would_fit)) + 1)
    return page


def question_rows(p: Metrics) -> list[tuple[str, str]]:
    """Return the question of a prediction: model, machines and strategy."""
    return [("model", clean(p.workload)), ("machines", machines_text(p)), ("strategy", strategy_text(p.strategy))]


def would_fit_sections(would_fit: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return sections with the nearest changes with which a job fits, and a command; none if it fits."""
    if not would_fit:
        return []
    rows = [[x["options"], memory(x["memory_bytes"]), seconds(x["step_time_s"]), number(x["samples_per_s"])] for x in would_fit]
    heads = ["options", "memory of a device", "step", "samples/s"]
    return [Section("What would fit", "The nearest first.", heads=heads, rows=rows, pre=would_fit[0]["command"])]


def asynchronous_page(prediction: AsyncPrediction) -> Page:
    """Return the page of an asynchronous job: staleness, utilization, first steps, and the synchronous job to compare."""
    r, p = prediction.result, prediction.synchronous
    findings = [f"Limited by {asynchronous_text.limit(prediction)}.", f"Accuracy: {asynchronous_text.NOT_KNOWN}."]
    page = Page(
        "asynchronous",
        clean(prediction.workload),
        asynchronous_text.subtitle(prediction),
        [*filter(None, [prediction.headline]), *findings],
    )
    ends = f"{number(r.low_samples_per_s)} to {number(r.high_samples_per_s)}"
    page.card("throughput", f"{number(r.samples_per_s)} samples/s", ends)
    page.card("mean staleness", number(r.mean_staleness), f"90 % at most {r.staleness_quantile(0.9)}")
    slow, fast = rate_bounds(p)
    note = f"{number(slow)} to {number(fast)}; asynchronous has {ratio(prediction.speedup)} its rate"
    page.card("synchronous", f"{number(p.samples_per_s)} samples/s", note)
    page.card(
        "memory of a worker",
        memory(prediction.worker.memory_bytes),
        "" if prediction.worker.fit == "fits" else f"it {prediction.worker.fit}",
    )
    label = "updates by others between a worker's reading and its own update"
    rows = [[str(k), percent(share)] for k, share in enumerate(r.staleness) if share >= 0.0005]
    page.sections += [
        Section(
            "Staleness",
            asynchronous_text.staleness(prediction),
            [shares(r.staleness, label)],
            wide=True,
            heads=["updates by others", "share"],
            rows=rows,
        ),
        Section("How busy", heads=["resource", "works"], rows=[[name, percent(x)] for name, x in r.utilisation.items()]),
        _first_steps(prediction),
        Section("To paste", pre=asynchronous_text.asynchronous_screen(prediction).text()),
        Section("It rests on", items=[clean(a, 1000) for a in prediction.assumptions]),
    ]
    return page


def _first_steps(prediction: AsyncPrediction) -> Section:
    """Return a section with the timeline of the first worker from its first request to the servers."""
    events = one_rank(prediction.result.timeline)
    end = max((e.end_s for e in events), default=0.0)
    timeline = StepTimeline(f"worker 0, the first {seconds(end)}", merged(events), end)
    svg = draw([timeline], "Timeline of one worker's first steps")
    return Section("One worker, bar by bar", HINT, [svg], wide=True, lanes=True)


def plan_page(plan: Plan) -> Page:
    """Return the page of a plan: the best strategy, the Pareto front of time and cost, the ranking, the exclusions."""
    best = plan.best
    page = Page("plan", clean(plan.workload), "")
    page.asked = [("model", clean(plan.workload)), ("training", plan.target), ("goal", str(plan.goal))]
    largest = max((best, *plan.by_devices), key=lambda choice: choice.cluster.world_size)
    page.asked += [("machines", f"up to {machines_text(largest.prediction)}")]
    page.asked += [("weighed", f"{plan.considered:,} strategies. {plan.layouts}".strip())]
    why_not = f"Why not: {plan.why_not}" if plan.why_not else ""
    rates = f"Learning rates: {plan.learning_rates}." if plan.learning_rates else ""
    page.findings = [*filter(None, (plan.notice, f"Best: {best.title}.", rates, plan.compression, why_not))]
    page.card("time", seconds(best.time_s), time_range(best.time_low_s, best.time_high_s, best.time_s))
    page.card(
        "cost", money(best.usd), f"{money(best.usd_low)} to {money(best.usd_high)}" if best.usd == best.usd else cost(best)
    )
    p = best.prediction
    page.card(
        "one step",
        seconds(p.step_time_s),
        f"{time_range(p.low_s, p.high_s, p.step_time_s)}; {number(p.samples_per_s)} samples/s",
    )
    if plan.critical_batch:
        note = f"critical: {plan.critical_batch:,.0f}; {best.beyond_least or 0:.0%} of the samples are beyond the least"
        page.card("batch", f"{best.strategy.global_batch_size:,}", note)
    if best.meets is not None:
        page.card("goal", likely(best.meets), f"how likely it takes at most {plan.goal.amount(plan.goal.limit)}")
    rows = [[choice.title, seconds(choice.time_s), cost(choice), choice.reason] for choice in plan.ranking]
    picture, *others = [
        *front_sections(plan),
        *_layout(plan.layout),
        *scaling_sections(plan.scaling, best.cluster.world_size),
        timeline_section({best.title: p}, ()),
    ]
    page.sections += [
        picture,
        *_by_devices(plan),
        *others,
        Section("Ranking", heads=["strategy", "time", "cost", "against the best"], rows=rows),
        Section(
            "Left out",
            heads=["reason", "strategies", "one of them"],
            rows=[[x.reason, f"{x.count:,}", clean(x.example)] for x in plan.excluded],
        ),
        Section("To paste", pre=text_of([ranking_table(plan.ranking)])),
        Section("Prices", items=plan.prices),
        Section("It rests on", items=[clean(a, 1000) for a in plan.assumptions]),
    ]
    page.fold(1)
    return page


def _layout(view: LayoutView | None) -> list[Section]:
    """Return a section on a divided network: its pipeline, the memory of its stages, its mesh on the nodes."""
    if view is None:
        return []
    stages = [layout_figures.grouped(sizes) for sizes in view.stage_memory]
    rows = [
        [f"{number}", *(memory(sizes[group]) for group in sizes), memory(sum(sizes.values()))]
        for number, sizes in enumerate(stages)
    ]
    mesh = view.mesh
    return [
        Section("Pipeline", layout_figures.sentence(view), [layout_figures.pipeline_chart(view, "pipeline")], wide=True),
        Section(
            "Memory of each stage",
            f"A device has {memory(view.available)}.",
            [layout_figures.memory_of_stages(view, "stages")],
            wide=True,
            heads=["stage", *stages[0], "all"],
            rows=rows,
        ),
        Section(
            "The mesh on the nodes",
            f"{mesh.data} replicas of {mesh.model_devices} devices: neighbours in tensor are neighbours in a node.",
            [layout_figures.mesh_on_nodes(view, "mesh")],
            wide=True,
        ),
    ]


def whatif_page(whatif: WhatIf, would_fit: Sequence[Mapping[str, Any]] = ()) -> Page:
    """Return the page of changes: gains with ranges, steps before and after, costs. ``would_fit``: as ``explained_page``."""
    base = whatif.base.prediction
    page = Page("what if", clean(base.workload), "")
    page.asked = [
        ("model", clean(base.workload)),
        ("machines", machines_text(base)),
        ("strategy", strategy_text(base.strategy)),
    ]
    page.findings = [f"{outcome.title}: {verdict(outcome, whatif.base)}" for outcome in whatif.outcomes[1:]]
    page.findings += [*impossible_lines(whatif), *filter(None, [gains_text(whatif)])]
    page.card("today", seconds(base.step_time_s), f"one step; {time_range(base.low_s, base.high_s, base.step_time_s)}")
    for outcome in whatif.outcomes[1:]:
        p = outcome.prediction
        page.card(
            outcome.title,
            f"{number(outcome.speedup)}x",
            f"{number(outcome.speedup_low)} to {number(outcome.speedup_high)}; {seconds(p.step_time_s)}",
        )
    timelines = {outcome.title: outcome.prediction for outcome in whatif.outcomes}
    page.sections += [
        *would_fit_sections(would_fit),
        gains_section(whatif),
        timeline_section(timelines, ()),
        *scaling_sections(whatif.scaling, whatif.base.cluster.world_size),
        Section("To paste", pre=text_of([whatif_table(whatif)])),
        Section("Prices", items=list(dict.fromkeys(outcome.price for outcome in whatif.outcomes))),
        Section("It rests on", items=list(whatif.assumptions)),
    ]
    page.fold(len(would_fit_sections(would_fit)) + 1)
    return page


def gains_section(whatif: WhatIf) -> Section:
    """Return a section with the speedup of each change as a bar."""
    bars = [(outcome.title, outcome.speedup, outcome.speedup_low, outcome.speedup_high) for outcome in whatif.outcomes[1:]]
    return Section("Gain of each change", SAME_STRATEGY, pictures=[gains(bars)], wide=True)


def memory_section(explained: Explained) -> Section:
    """Compare the memory that a device needs with its capacity."""
    prediction, available = explained.prediction, explained.available
    groups = layout_figures.grouped(prediction.memory)
    share = prediction.memory_bytes / available
    text = f"{memory(prediction.memory_bytes)} of {memory(available)}, {share:.0%}: the job {prediction.fit}."
    return Section("Memory of a device", text, [memory_bar(groups, available)], wide=True)


def _by_devices(plan: Plan) -> list[Section]:
    """Return a table of the best strategy for each number of devices, with batch and learning rates."""
    heads = ["devices", "batch", "time", "80 % range", "cost", "samples beyond the least", "optimizer, peak rate, warm-up"]
    rows = [[*row[:-1], str(choice.recipe or row[-1])] for choice, row in zip(plan.by_devices, devices_rows(plan), strict=True)]
    return [Section("By number of devices", batch_text(plan), heads=heads, rows=rows)] if len(rows) > 1 else []


def front_sections(plan: Plan) -> list[Section]:
    """Return sections on time against cost, if there are prices."""
    points: list[Choice] = [choice for choice in plan.front if choice.usd == choice.usd]
    if len(points) < 2:
        return []
    same = [
        n for n, choice in enumerate(points) if (choice.cluster, choice.strategy) == (plan.best.cluster, plan.best.strategy)
    ]
    svg = front([(choice.time_s, choice.usd, choice.title) for choice in points], same[0] if same else -1)
    rows = [[choice.title, seconds(choice.time_s), cost(choice)] for choice in points]
    title = "Time against money"
    return [
        Section(
            title,
            "No other strategy is both faster and cheaper than these.",
            [svg],
            wide=True,
            heads=["strategy", "time", "cost"],
            rows=rows,
        )
    ]


def scaling_sections(lines: Lines, asked_for: int) -> list[Section]:
    """Return sections on speed by number of devices."""
    if not lines:
        return []
    drawn = {
        title: [ScalingPoint(int(p.strategy["world_size"]), p.samples_per_s, *rate_bounds(p), p.fits) for p in line]
        for title, line in lines.items()
    }
    rows = [
        [
            f"{s.devices}{'' if s.fits else ' *'}",
            title,
            number(s.rate),
            f"{number(s.low)} to {number(s.high)}",
            f"{s.rate / s.devices / line[0].rate * line[0].devices:.0%}",
        ]
        for title, line in drawn.items()
        for s in line
    ]
    heads = ["devices", "batch", "samples/s", "80 % range", "of ideal"]
    return [
        Section(
            "How it scales",
            "Dotted: in proportion to the devices. Upright: the number asked about."
            + ("" if all(s.fits for line in drawn.values() for s in line) else f" *: {UNFIT}, and the speed is as if it did."),
            pictures=[scaling(drawn, asked_for)],
            wide=True,
            heads=heads,
            rows=rows,
        )
    ]


def timeline_section(runs: Mapping[str, Metrics], measured: Sequence[Event]) -> Section:
    """Return a section with the timeline of one step of each run."""
    timelines = []
    for title, run in runs.items():
        events = merged(one_rank(measured if title == "measured" else run.timeline))
        if events:
            timelines.append(StepTimeline(f"{clean(title, 60)}: {seconds(run.step_time_s)}", events, run.step_time_s))
    if not timelines:
        return Section("One step, bar by bar", "No timeline was kept.")
    label = "Timeline of one training step: " + "; ".join(g.title for g in timelines)
    hint = f"{HINT} paceline explain --trace writes them for Perfetto."
    return Section("One step, bar by bar", hint, [draw(timelines, label)], wide=True, lanes=True)
