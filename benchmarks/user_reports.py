"""Answers to public reports of users: what a command said at an old commit, what it says now, and what happened.

    PACELINE_SHARED=FOLDER python benchmarks/user_reports.py --out RESULTS/user_reports.csv

RESULTS is benchmarks/results. FOLDER/data/users holds ``reports.csv`` (id, kind, link, command, truth, answer of an old commit)
with the configurations and files that its commands name. Kinds: a, seconds a step; b, peak memory, or whether a run ran out of
memory; c, questions; d, files. ``user_reports_found.csv`` here has further reports of kinds a and b with their sources.

``user_reports.toml`` says for each report which framework ran, and the options of today that its text states. ``options`` are
added to the command, ``command`` replaces it, and ``run`` is the command of a report in prose. These come from the report
alone and not from what was measured. ``alternative`` marks another reading of a report: it is written down and not counted.
``--as-typed`` leaves the options out.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rows import append

from paceline.cli import main as paceline
from paceline.exit_codes import ExitCode
from paceline.memory_timeline import BEYOND, OUTSIDE

HERE = Path(__file__).parent
GIB = 2.0**30
COLUMNS = (
    "id",
    "group",
    "kind",
    "framework",
    "reported",
    "link",
    "answer_before",
    "answer_now",
    "error",
    "inside",
    "verdict",
    "counted",
    "options",
)
VERDICTS = {
    ("fits", True): "right",
    ("fits", False): "dangerous",
    ("may not fit", True): "unsure",
    ("may not fit", False): "unsure",
    ("does not fit", True): "wrong",
    ("does not fit", False): "right",
}
"""Verdict on a fit, by whether the run ran. ``dangerous``: it was said to fit and ran out of memory."""
COMMANDS = ("predict", "ask", "plan", "whatif", "memory", "records", "schedule")
TRANSFORMERS_5 = "2025-12"
BEFORE = {"hf-trainer": "hf-trainer-4", "trl": "hf-trainer-4", "deepspeed": "deepspeed-4"}
"""Names of frameworks around transformers 4, for reports from before ``TRANSFORMERS_5``. TRL had the loss of transformers."""
UNITS = {"GB": 1e9, "GiB": GIB, "MB": 1e6, "MiB": 2.0**20}
NEAR = 0.15
CRASHED = 70
"""Exit code of a crash."""


@dataclass(frozen=True)
class Report:
    """A report of a user.

    Attributes:
        truth: what happened, as ``reports.csv`` writes it: ``0.58 s``, ``ran, 21.3 GB``, ``out of memory``.
        before: the answer at the old commit; empty for reports found later.
        overlay: entry of ``user_reports.toml``.
    """

    id: str
    group: str
    kind: str
    link: str
    date: str
    command: str
    truth: str
    before: str
    overlay: Mapping[str, str] = field(default_factory=dict)

    @property
    def framework(self) -> str:
        """Framework that the report names."""
        return self.overlay.get("framework", "")

    @property
    def counted(self) -> bool:
        """True unless this is a second reading of another report, or a doubtful one."""
        return not (self.overlay.get("alternative") or self.overlay.get("doubtful"))

    @property
    def options(self) -> str:
        """Options of today that are added to the command."""
        words = self.overlay.get("options", "").split(" ")
        if self.date < TRANSFORMERS_5:
            words = [BEFORE.get(word, word) for word in words]
        return " ".join(words)

    def words(self, as_typed: bool) -> list[str]:
        """Return the command to run, with the options of the overlay unless ``as_typed``."""
        command = self.overlay.get("run", self.command)
        if not as_typed:
            command = f"{self.overlay.get('command', command)} {self.options}"
        return shlex.split(command.replace("./hf/", "configs/"))


def reports(users: Path, sealed: bool) -> Iterator[Report]:
    """Yield the reports of the shared file and of the one here; ``sealed`` ones of the latter alone if asked."""
    overlay = tomllib.loads((HERE / "user_reports.toml").read_text())
    if not sealed and (users / "reports.csv").is_file():
        for row in csv.DictReader((users / "reports.csv").open(newline="")):
            yield Report(
                row["id"],
                "gathered",
                row["kind"],
                row["link"],
                row["date"],
                row["command"].strip("`"),
                row["truth"],
                row["answer_at_4dc469d0"],
                overlay.get(row["id"], {}),
            )
    for row in csv.DictReader((HERE / "user_reports_found.csv").open(newline="")):
        if bool(row["sealed"]) == sealed:
            options = f"--framework {row['framework']}"
            extra = {"framework": row["framework"], "counts": row["counts"], "options": options, **overlay.get(row["id"], {})}
            group = "sealed" if sealed else "found later"
            fields = (row["kind"], row["link"], row["date"], row["command"], row["truth"])
            yield Report(row["id"], group, *fields, "", extra)


def answer(words: Sequence[str], users: Path) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it printed on both outputs."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error), chdir(users):
        try:
            code = paceline(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception as crash:  # a crash is written down as an answer
            return CRASHED, "", f"CRASH {type(crash).__name__}: {crash}"
    return code, out.getvalue(), error.getvalue()


def size(text: str) -> float | None:
    """Return the bytes that a text such as ``ran, 21.3 GB`` states; None without any."""
    found = re.search(r"([\d.]+) (GB|GiB|MB|MiB)", text)
    return float(found[1]) * UNITS[found[2]] if found else None


def peak(said: Mapping[str, object], counts: str) -> float:
    """Return predicted bytes of what a peak ``counts``: tensors ``allocated``, ``reserved`` by PyTorch or all of a device."""
    memory, total = said["memory"], said["memory_bytes"]
    assert isinstance(memory, dict) and isinstance(total, float)
    left_out = {"device": (), "reserved": OUTSIDE, "allocated": BEYOND}[counts]
    return total - sum(float(memory.get(name, 0.0)) for name in left_out)


def row(report: Report, users: Path, as_typed: bool) -> dict[str, object]:
    """The row of a report."""
    words = report.words(as_typed)
    runs = words[:1] and words[0] in COMMANDS
    plain = report.kind in "ab" and words[:1] == ["predict"]
    result: dict[str, object] = {
        "id": report.id,
        "group": report.group,
        "kind": report.kind,
        "framework": report.framework,
        "reported": report.date,
        "link": report.link,
        "answer_before": report.before,
        "counted": report.counted,
        "options": "" if as_typed else " ".join(filter(None, [report.overlay.get("command", ""), report.options])),
    }
    if not runs:
        return result | {"answer_now": "", "verdict": "no command"}
    code, out, error = answer([*words, *(["--json"] if plain else ["--brief"])], users)
    if code not in (ExitCode.DONE, ExitCode.NO):
        text = " ".join((error or out).split()).removeprefix("paceline: ")
        return result | {"answer_now": f"refused: {text[:160]}", "verdict": "crash" if code == CRASHED else "refused"}
    if not plain:
        return result | {"answer_now": " ".join(out.split())[:200], "verdict": "answered"}
    said = json.loads(out)
    step, fit = said["step_time_s"], said["fit"]
    text = f"{step:.3g} s ({said['low_s']:.3g}-{said['high_s']:.3g}), {said['memory_bytes'] / GIB:.1f} GiB {fit}"
    result["answer_now"] = text
    if report.kind == "a":
        seconds = float(report.truth.split()[0])
        inside = said["low_s"] <= seconds <= said["high_s"]
        return result | {"error": f"{step / seconds - 1:+.3f}", "inside": inside, "verdict": "in range" if inside else "out"}
    published = size(report.truth.replace("GB", report.overlay.get("unit", "GB")))
    error_of = f"{peak(said, report.overlay.get('counts', 'allocated')) / published - 1:+.3f}" if published else ""
    ran = report.truth.startswith("ran")
    known = ran or report.truth.startswith("out of memory")
    return result | {"error": error_of, "verdict": VERDICTS[fit, ran] if known else ""}


def _median(errors: Sequence[float]) -> str:
    return f"{median(errors):7.1%}" if errors else "      -"


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.0%})" if whole else "-"


def summary(rows: Sequence[Mapping[str, object]]) -> str:
    """Text of the errors and verdicts by group and framework; second readings are left out."""
    counted = [r for r in rows if r["counted"]]
    lines = []
    for group in dict.fromkeys(str(r["group"]) for r in counted):
        by: dict[str, list[Mapping[str, object]]] = defaultdict(list)
        for r in counted:
            if r["group"] == group:
                by["all"].append(r)
                by[str(r["framework"]) or "not stated"].append(r)
        lines.append(
            f"{group}: framework, speeds (median error, inside), fits (right, unsure, wrong, dangerous), peaks (median error)"
        )
        for name, of in sorted(by.items(), key=lambda item: (item[0] != "all", item[0])):
            speeds = [r for r in of if r["kind"] == "a" and r.get("error")]
            peaks = [abs(float(str(r["error"]))) for r in of if r["kind"] == "b" and r.get("error")]
            fits = [str(r["verdict"]) for r in of if r["kind"] == "b" and r["verdict"] in VERDICTS.values()]
            refused = sum(r["kind"] in ("a", "b") and r["verdict"] in ("refused", "crash") for r in of)
            if not speeds and not peaks and not fits and not refused:
                continue
            errors = [abs(float(str(r["error"]))) for r in speeds]
            inside = _share(sum(r["inside"] is True for r in speeds), len(speeds))
            kinds = ", ".join(f"{fits.count(verdict)} {verdict}" for verdict in ("unsure", "wrong", "dangerous"))
            near = _share(sum(error <= NEAR for error in peaks), len(peaks))
            lines.append(
                f"  {name:14} speeds {len(speeds):3} {_median(errors)} inside {inside:>12}; "
                f"fits {_share(fits.count('right'), len(fits)):>12} right, {kinds}; "
                f"peaks {len(peaks):3} {_median(peaks)}, {near} within {NEAR:.0%}; refused {refused}"
            )
        for kind, name in (("c", "questions"), ("d", "files")):
            of = [r for r in by["all"] if r["kind"] == kind]
            if of:
                lines.append(f"  {name}: {_share(sum(r['verdict'] == 'answered' for r in of), len(of))} answered")
    return "\n".join(lines)


def main() -> None:
    """Score the reports, write their rows and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV of the rows")
    parser.add_argument("--as-typed", action="store_true", help="leave the options of user_reports.toml out")
    parser.add_argument("--sealed", action="store_true", help="score the sealed reports alone")
    parser.add_argument("--found", action="store_true", help="leave the reports of the shared file out")
    parser.add_argument("--kinds", default="abcd", help="kinds of reports to score, such as ab")
    parser.add_argument("--show", action="store_true", help="print each row too")
    options = parser.parse_args()
    users = Path(os.environ.get("PACELINE_SHARED", HERE.parents[1] / "shared")) / "data" / "users"
    here = users if users.is_dir() else HERE
    every = reports(users, options.sealed)
    of = [report for report in every if report.kind in options.kinds and not (options.found and report.group == "gathered")]
    rows = [row(report, here, options.as_typed) for report in of]
    for report, result in zip(of, rows, strict=True):
        if options.show:
            scored = f"{result['answer_now']} | {result.get('error', '')} {result['verdict']}"
            print(f"{report.id:8} {report.framework:12} {report.truth:16} {scored}")
    if options.out:
        options.out.unlink(missing_ok=True)
        for result in rows:
            append(options.out, COLUMNS, result)
    print(summary(rows))


if __name__ == "__main__":
    main()
