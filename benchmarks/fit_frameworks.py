"""Fit of a framework's host: seconds to gather and release a module under DeepSpeed's ZeRO-3, with each source left out.

    PACELINE_SHARED=FOLDER python benchmarks/fit_frameworks.py --out RESULTS/framework_fit.csv

Sources: full fine-tuning in Qwen's README (its script for it runs ZeRO-3), and the reports of users that ran ZeRO-3
(``user_reports.toml``). A row's error is written three ways: with the constants of plain PyTorch, with the figure fitted to all
other sources, and with the figure of ``frameworks.toml``. Rows longer than the host are not moved by it and stay in.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import user_reports
from rows import append
from scipy.optimize import minimize_scalar

from paceline.cli.arguments.prediction_inputs import prediction_inputs
from paceline.cli.command_line import build_parser, parse
from paceline.csv_rows import read
from paceline.exit_codes import ExitCode
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.answer import step_range
from paceline.strategy import Strategy
from paceline.strategy.frameworks import FRAMEWORKS, LEVELS
from paceline.validation.case import Case
from paceline.validation.sets import published
from paceline.workload import Workload

HERE = Path(__file__).parent
DEEPSPEED = FRAMEWORKS["deepspeed"]
COLUMNS = ("source", "row", "measured_s", "plain", "left_out", "kept", "fitted_left_out_s")
LARGEST_S = 5e-3


@dataclass(frozen=True)
class Row:
    """A measured step under DeepSpeed's ZeRO-3."""

    source: str
    name: str
    measured_s: float
    workload: Workload
    cluster: Cluster
    strategy: Strategy
    attention: str = ""

    def error(self, module_host_s: float) -> float:
        """Return the logarithm of predicted over measured seconds. 0 means without hooks of modules."""
        framework = replace(DEEPSPEED, module_host_s=module_host_s)
        predictor = Predictor(framework=framework, attention=self.attention)
        return math.log(predictor.step(self.workload, self.cluster, self.strategy).step_time_s / self.measured_s)


def qwen(measured: Path) -> list[Row]:
    """Return the rows of full fine-tuning in Qwen's README."""
    raw = published.joined(read(measured / "qwen_finetune_a100.csv", published.TEXTS + published.NUMBERS))
    cases = [(row, published.case(row)) for row in raw if "Full-parameter" in row.text("other_options")]
    return [
        Row(
            "Qwen README",
            f"{case.workload.name} {case.workload.tokens}",
            case.step_s,
            case.workload,
            case.setting.cluster,
            case.setting.strategy.changed(sharding="zero3"),
            case.attention,
        )
        for _, case in cases
        if isinstance(case, Case)
    ]


def reported(users: Path) -> list[Row]:
    """Return the counted reports of speeds under DeepSpeed's ZeRO-3, each link a source."""
    overlay = tomllib.loads((HERE / "user_reports.toml").read_text())
    found: list[Row] = []
    os.chdir(users)
    for row in csv.DictReader((users / "reports.csv").open(newline="")):
        own = overlay.get(row["id"], {})
        command = own.get("command", row["command"].strip("`"))
        if row["kind"] != "a" or own.get("framework") != "deepspeed" or own.get("alternative") or "zero3" not in command:
            continue
        inputs = prediction_inputs(parse(build_parser(), shlex.split(command)))
        found.append(Row(row["link"], row["id"], float(row["truth"].split()[0]), *inputs))
    return found


def fitted(rows: Sequence[Row]) -> float:
    """Return the seconds of a module with the least mean square of errors. Each source counts once."""
    sources = sorted({row.source for row in rows})

    def misfit(seconds: float) -> float:
        return mean(mean(row.error(seconds) ** 2 for row in rows if row.source == source) for source in sources)

    return float(minimize_scalar(misfit, bounds=(0.0, LARGEST_S), method="bounded", options={"xatol": 1e-5}).x)


@dataclass(frozen=True)
class Reported:
    """A reported speed and the range of its framework without a spread of reports."""

    source: str
    name: str
    log_error: float
    faster: float
    slower: float

    def inside(self, spread: tuple[float, float]) -> bool:
        """Return whether the range holds the speed, widened by a spread."""
        return -math.hypot(self.faster, spread[0]) <= self.log_error <= math.hypot(self.slower, spread[1])


def speeds(users: Path) -> list[Reported]:
    """Return the counted speeds under a framework that is not one of the plain levels."""
    found = []
    step_range.reported_spread = lambda e: (0.0, 0.0)
    for report in user_reports.reports(users, sealed=False):
        if report.kind != "a" or not report.counted or report.framework in ("", *LEVELS):
            continue
        code, out, _ = user_reports.answer([*report.words(as_typed=False), "--json"], users)
        if code not in (ExitCode.DONE, ExitCode.NO) or json.loads(out)["framework"] in LEVELS:
            continue
        said, measured = json.loads(out), float(report.truth.split()[0])
        step = said["step_time_s"]
        ends = math.log(step / said["low_s"]), math.log(said["high_s"] / step)
        found.append(Reported(report.link, report.id, math.log(measured / step), *ends))
    return found


def spread(rows: Sequence[Reported], outside: float = 0.05) -> tuple[float, float]:
    """Return the least spread that leaves at most ``outside`` of the rows beyond each end. Each source counts once."""
    counts = Counter(row.source for row in rows)
    total, ends = len(counts), []
    for sign in (-1, 1):
        needed = sorted(
            (
                math.sqrt(max(0.0, max(0.0, sign * row.log_error) ** 2 - (row.slower if sign > 0 else row.faster) ** 2)),
                1 / counts[row.source],
            )
            for row in rows
        )
        beyond = 0.0
        for value, weight in reversed(needed):
            beyond += weight
            if beyond > outside * total:
                ends.append(value)
                break
    return ends[0], ends[1]


def main() -> None:
    """Fit, score with each source left out, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    out = out and out.absolute()
    shared = Path(os.environ["PACELINE_SHARED"]) / "data"
    told = speeds(shared / "users")
    of_all = spread(told)
    plain, kept = (sum(row.inside(ends) for row in told) for ends in ((0.0, 0.0), of_all))
    cold = sum(row.inside(spread([other for other in told if other.source != row.source])) for row in told)
    print(f"spread of reports: {of_all[0]:.3f} faster, {of_all[1]:.3f} slower; inside of {len(told)}: {plain} without, "
          f"{kept} with, {cold} with their source left out")  # fmt: skip
    rows = [*qwen(shared / "measured"), *reported(shared / "users")]
    without = {source: fitted([row for row in rows if row.source != source]) for source in {row.source for row in rows}}
    print(f"of all: {1e3 * fitted(rows):.2f} ms a module and pass; frameworks.toml: {1e3 * DEEPSPEED.module_host_s:.2f} ms")
    for row in rows:
        cold = without[row.source]
        errors = [math.expm1(row.error(seconds)) for seconds in (0.0, cold, DEEPSPEED.module_host_s)]
        texts = (f"{error:+.3f}" for error in errors)
        written = dict(zip(COLUMNS, (row.source, row.name, row.measured_s, *texts, f"{cold:.5f}"), strict=True))
        print(*written.values(), sep="  ")
        if out:
            append(out, COLUMNS, written)


if __name__ == "__main__":
    main()
