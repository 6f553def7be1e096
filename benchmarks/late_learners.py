"""Late and decoupled learners: seconds, shares of steps that count and bytes, predicted and measured in an emulated cluster.

    python benchmarks/late_learners.py --links 100Mb/s 1Gb/s --out ROWS

ROWS is benchmarks/results/late_learners.csv. Four sites with one million parameters each train by sleeping, 40 local steps of
50 ms, and the last one may be slower. Exchanges, members, ages and fetched weights are real. A prediction knows the length of a
step, the times of the sites relative to each other and the link's nominal rate. Nothing of it was chosen in sight of a row.
An earlier form of these cases showed that transfers of one outer step share the sender's line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lab_cases
import torch
from rows import append
from torch import nn

from paceline.workload import Workload

COLUMNS = (
    "link",
    "case",
    "times",
    "compression",
    "round_deadline_s",
    "max_age",
    "rounds",
    "step_s",
    "predicted_s",
    "error",
    "counted",
    "predicted_counted",
    "socket_bytes",
    "predicted_bytes",
    "fetches",
    "members",
)
"""Bytes are of a worker's round. ``rounds`` are those of all workers."""
HOSTS, EVERY, STEP_S, WIDTH = 4, 40, 0.05, 1000


def case(name: str, slow: float, deadline: float | None = None, age: int = 0, compression: str = "dense") -> dict[str, Any]:
    """Return a case. ``slow``: time of the last site's step relative to the others'."""
    late = {} if deadline is None else {"round_deadline_s": deadline, **({"max_age": age} if age else {})}
    times = [1.0] * (HOSTS - 1) + [slow]
    return {"name": name, "times": times, "compression": compression, "local": {"sync_every": EVERY, **late}}


CASES = (
    case("all wait", 1.5),
    case("late ones lose their steps", 1.5, 0.3),
    case("late ones count", 1.5, 0.3, 2),
    case("decoupled", 1.5, 0.0, 8),
    case("decoupled, young changes only", 3.0, 0.0, 1),
    case("decoupled, int8", 1.5, 0.0, 8, "int8"),
)


def row(found: dict[str, Any], link: str, table: Workload) -> dict[str, Any]:
    """Return the row of a case and its prediction."""
    nominal = "100Gb/s" if link == "loopback" else link
    times = tuple(found["times"])
    guess = lab_cases.predicted(table, HOSTS, nominal, found, STEP_S, 0.0, overlap=False, worker_times=times)
    local = found["local"]
    values = {
        "link": link,
        "case": found["name"],
        "times": " ".join(f"{factor:g}" for factor in times),
        "round_deadline_s": local.get("round_deadline_s", ""),
        "max_age": local.get("max_age", 0),
        "predicted_s": guess.step_time_s,
        "error": guess.step_time_s / found["step_s"] - 1,
        "predicted_counted": guess.counted,
        "predicted_bytes": guess.wire_bytes_per_device * EVERY,
        **{name: found[name] for name in ("compression", "rounds", "step_s", "counted", "socket_bytes", "fetches", "members")},
    }
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=["100Mb/s", "1Gb/s"])
    parser.add_argument("--cases", nargs="+", choices=[c["name"] for c in CASES], help="default: all")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a case")
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    example = torch.zeros(1, WIDTH, device="meta")
    table = Workload.trace(lambda: nn.Linear(WIDTH, WIDTH, bias=False), example, name="linear", source="benchmarks")
    spec = {"width": WIDTH, "step_s": STEP_S, "seconds": o.seconds, "warm_s": o.seconds / 8}
    for link in map(lab_cases.actual, o.links):
        with lab_cases.cluster(HOSTS, link) as on:
            cases = [c for c in CASES if not o.cases or c["name"] in o.cases]
            for found in lab_cases.run(on, spec, cases, script="late_learners_rank.py"):
                own = row(found, link, table)
                append(o.out, COLUMNS, own)
                print(
                    f"  {link:9} {own['case']:30} step {own['step_s']:.4f} s, predicted {own['predicted_s']:.4f}"
                    f" ({own['error']:+.1%}); counted {own['counted']:.0%}, predicted {own['predicted_counted']:.0%};"
                    f" MB a round {own['socket_bytes'] / 1e6:.2f}, predicted {own['predicted_bytes'] / 1e6:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
