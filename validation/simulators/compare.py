"""Training simulators on the same published rows: their errors next to Paceline's.

    python validation/simulators/compare.py [--rows] [--json] [--out FILE]

No constant of Paceline was fitted to steps on the chip of a row, and no row is visible to it. Published measurements of single
products and collectives on the chip are in its catalogue.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from paceline.record import environment
from paceline.validation import validate
from paceline.validation.case import Case

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks/results"
GIB = 2**30
SETS = {"simumax": "published", "primus": "published", "neusight": "neusight", "megatron": "megatron_table"}
"""Files with rows, and the set of ``paceline validate`` that reads each."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run.

    Attributes:
        measured_s, predicted_s, low_s, high_s: seconds of a step, measured, and predicted by Paceline with the 80 % range.
        measured_gib: peak memory of a device; None if not published. ``memory_error``: Paceline's, as a fraction.
        answer_s: mean seconds that reading and predicting a run take.
        others_s, others_gib: predictions of simulators by name.
    """

    set: str
    run: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    measured_gib: float | None
    memory_error: float | None
    answer_s: float
    others_s: Mapping[str, float] = field(default_factory=dict)
    others_gib: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A simulator on the runs for which its prediction is published, next to Paceline. Errors are fractions of the measured."""

    set: str
    simulator: str
    runs: int
    needs: str
    answer: str
    time: float
    time_worst: float | None
    paceline_time: float
    paceline_worst: float | None
    paceline_inside: float
    memory: float | None = None
    paceline_memory: float | None = None
    paceline_answer: str = ""


def runs() -> Iterator[Run]:
    """Predict every row of the files."""
    for name, reader in SETS.items():
        start = time.perf_counter()
        found = validate(reader, HERE / f"{name}.csv").points
        took = (time.perf_counter() - start) / len(found)
        for point in found:
            case, estimate = point.case, point.estimate
            yield Run(
                set=name,
                run=f"{case.keys.model}, {_layout(case)}, {case.keys.devices} {case.keys.device}",
                measured_s=case.step_s,
                predicted_s=estimate.step_s,
                low_s=estimate.low_s,
                high_s=estimate.high_s,
                measured_gib=case.memory_bytes / GIB if case.memory_bytes else None,
                memory_error=point.memory_error,
                answer_s=took,
                others_s=case.published,
                others_gib={simulator: memory / GIB for simulator, memory in case.published_memory.items()},
            )


def _layout(case: Case) -> str:
    strategy = case.setting.strategy
    mesh = strategy.parallelism
    sizes = zip(("tp", "pp", "cp", "ep"), (mesh.tensor, mesh.pipeline, mesh.context, mesh.expert), strict=True)
    parts = [f"{name}{size}" for name, size in sizes if size > 1]
    return " ".join([*parts, f"batch {strategy.global_batch_size}"])


def lines(data: Mapping[str, Any], rows: Sequence[Run]) -> Iterator[Line]:
    """Return a line for each simulator with rows, or with an average over the rows of a set."""
    for name, facts in data["simulators"].items():
        own = [row for row in rows if row.set == facts["set"] and ("mean" in facts or name in row.others_s)]
        named = {"set": facts["set"], "simulator": name, "needs": facts["needs"]}
        named["answer"] = facts.get("seconds", "not published")
        if not own:
            yield Line(**named, **_validated(facts))
            continue
        errors = [abs(row.predicted_s / row.measured_s - 1) for row in own]
        theirs = [abs(row.others_s[name] / row.measured_s - 1) for row in own if name in row.others_s]
        memory = [row for row in own if row.measured_gib and name in row.others_gib]
        yield Line(
            **named,
            runs=len(own),
            time=fmean(theirs) if theirs else facts["mean"],
            time_worst=max(theirs) if theirs else facts.get("worst"),
            paceline_time=fmean(errors),
            paceline_worst=max(errors),
            paceline_inside=fmean(row.low_s <= row.measured_s <= row.high_s for row in own),
            memory=fmean(abs(row.others_gib[name] / (row.measured_gib or 1) - 1) for row in memory) if memory else None,
            paceline_memory=fmean(row.memory_error or 0.0 for row in memory) if memory else None,
            paceline_answer=_duration(median(row.answer_s for row in own)),
        )


def _validated(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return Paceline's error on a set whose rows are not here, as the last validation of that set found it."""
    with (RESULTS / "validation.csv").open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["set"] == facts["set"] and row["seen"] == "none"][-1]
    return {
        "runs": int(found["rows"]),
        "time": facts["mean"],
        "time_worst": facts.get("worst"),
        "paceline_time": float(found["mape"]),
        "paceline_worst": None,
        "paceline_inside": float(found["inside"]),
        "paceline_answer": "under 0.1 s",
    }


def _duration(seconds: float) -> str:
    """Return a bound above a duration, which hardly differs between machines."""
    return next((f"under {bound:g} s" for bound in (0.1, 1.0, 10.0) if seconds < bound), f"{seconds:.0f} s")


def percent(value: float | None) -> str:
    """Return a fraction in %; ``-`` if unknown."""
    return "-" if value is None else f"{100 * value:.1f}"


def report(data: Mapping[str, Any], found: Sequence[Line]) -> Iterator[str]:
    """Return the tables as lines of text."""
    yield "Mean errors in % of the measured value, worst run in brackets. Paceline needs no device and no profile."
    for name, facts in data["sets"].items():
        own = [line for line in found if line.set == name]
        yield f"\n{facts['title']}: {max(line.runs for line in own)} runs, Paceline's answer {own[0].paceline_answer}"
        yield f"  {'':<11}{'runs':>5}{'step':>13}{'Paceline':>13}{'in 80 %':>9}{'memory':>8}{'Paceline':>9}  answer; needs"
        for line in own:
            theirs, ours = (
                f"{percent(mean)} ({percent(worst)})"
                for mean, worst in ((line.time, line.time_worst), (line.paceline_time, line.paceline_worst))
            )
            yield (
                f"  {line.simulator:<11}{line.runs:>5}{theirs:>13}{ours:>13}{percent(line.paceline_inside):>9}"
                f"{percent(line.memory):>8}{percent(line.paceline_memory):>9}  {line.answer}; {line.needs}"
            )
    yield "\nPublished on other rows"
    for facts in data["elsewhere"]:
        yield f"  {facts['name']:<18}{facts['time']:<31}{facts['rows']}; needs {facts['needs']}"
    yield "\nSources"
    for name, facts in (*data["sets"].items(), *data["simulators"].items(), *((f["name"], f) for f in data["elsewhere"])):
        if "source" in facts:
            yield f"  {name}: {facts['source']}"


def row_lines(rows: Sequence[Run]) -> Iterator[str]:
    """Return a line for each run: measured seconds, Paceline's error and that of each simulator."""
    for row in rows:
        others = ", ".join(f"{name} {value / row.measured_s - 1:+.1%}" for name, value in row.others_s.items())
        yield f"{row.run:<52}{row.measured_s:>9.4g} s  Paceline {row.predicted_s / row.measured_s - 1:+.1%}, {others}"


def write_csv(path: Path, found: Sequence[Line]) -> None:
    """Write the lines with date, commit and environment."""
    where = environment()
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*vars(found[0]), *where])
        for line in found:
            values = ["" if v is None else f"{v:.4g}" if isinstance(v, float) else v for v in vars(line).values()]
            table.writerow([*values, *where.values()])


def main(argv: list[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description="Training simulators on the same published rows.")
    parser.add_argument("--rows", action="store_true", help="print every run too")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--out", type=Path, help="write the lines as CSV")
    options = parser.parse_args(argv)
    data = tomllib.loads((HERE / "published.toml").read_text(encoding="utf-8"))
    rows = list(runs())
    found = list(lines(data, rows))
    if options.json:
        print(json.dumps([vars(line) for line in found], indent=1))
    else:
        print("\n".join([*report(data, found), *(row_lines(rows) if options.rows else ())]))
    if options.out:
        write_csv(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
