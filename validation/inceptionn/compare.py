"""Predicted against published step times of INCEPTIONN.

    python validation/inceptionn/compare.py [--json] [--out FILE]

Exit code 1 when the prediction violates an ordering that it must keep.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from paceline.calibration.constants import HIGH, LOW, TYPICAL
from paceline.hardware import cluster as make_cluster
from paceline.prediction import Prediction, Predictor
from paceline.record import environment
from paceline.strategy import Strategy
from paceline.workload import Workload

PUBLISHED = Path(__file__).with_name("published.toml")
# The paper's systems: gradients to an aggregator (whose answer, weights, is never compressed), or around a ring.
SYSTEMS: dict[str, dict[str, Any]] = {
    "WA": {"compression": "dense", "exchange": "parameter_server"},
    "WA+C": {"compression": "inceptionn", "exchange": "parameter_server", "compress_pull": False},
    "INC": {"compression": "dense", "exchange": "ring"},
    "INC+C": {"compression": "inceptionn", "exchange": "ring"},
}
KEYS = {"WA+C": "wa_c", "INC": "inc", "INC+C": "inc_c"}
ORDER = ("INC+C", "INC", "WA+C", "WA")  # fastest first; Fig. 12 has this order for every network


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network under one system; seconds of a step. ``ours``: rank 0 aggregates instead of a fifth node."""

    net: str
    system: str
    published: float
    step: float
    low: float
    high: float
    comm: float
    published_comm: float | None
    ours: float
    wire_bytes: int

    @property
    def error(self) -> float:
        """Relative error of the step time."""
        return self.step / self.published - 1


def one_step(data: dict[str, Any], net: str, system: str, nodes: int, factor: float) -> Prediction:
    """Predict a step of ``nodes`` ranks, with the compute seconds of one device multiplied by ``factor``."""
    facts, how = data["nets"][net], SYSTEMS[system]
    options = {"bound": data["bound"], "ratio": facts["ratio"]} if how["compression"] == "inceptionn" else {}
    strategy = Strategy.of(world_size=nodes, global_batch_size=nodes * facts["batch"], options=options, **how)
    levels = (LOW.timed(factor), TYPICAL.timed(factor), HIGH.timed(factor))
    where = make_cluster(data["device"], 1, nodes, data["network"])
    # The paper adds its parts up: nothing overlaps.
    return Predictor(overlap=False, constants=levels).step(Workload.named(net), where, strategy)


def compute_factor(data: dict[str, Any], net: str) -> float:
    """Published / predicted seconds of one worker without any exchange: forward, backward, copies, update of Table II."""
    parts = data["nets"][net]["seconds"]
    published = sum(parts[name] for name in ("forward", "backward", "copy", "update")) / 100
    return float(published / one_step(data, net, "WA", 1, 1.0).step_time_s)


def nodes_of(data: dict[str, Any], system: str, workers: int = 0) -> int:
    """Ranks that move the paper's bytes: its aggregator is a node beside the workers, ours is rank 0 and works too."""
    return (workers or int(data["workers"])) + (1 if system.startswith("WA") else 0)


def make_rows(data: dict[str, Any]) -> Iterator[Row]:
    """Every network under every system."""
    for net, facts in data["nets"].items():
        factor, parts = compute_factor(data, net), facts["seconds"]
        comm = {"WA": parts["communicate"] / 100, "INC": parts["communicate"] / 100 * (1 - facts["ring_cut"])}
        for system in SYSTEMS:
            p = one_step(data, net, system, nodes_of(data, system), factor)
            ours = one_step(data, net, system, data["workers"], factor)
            scale = facts["normalised"][KEYS[system]] if system in KEYS else 1.0
            yield Row(
                net=net,
                system=system,
                published=scale * parts["total"] / 100,
                step=p.step_time_s,
                low=p.low_s,
                high=p.high_s,
                comm=p.comm_s,
                published_comm=comm.get(system),
                ours=ours.step_time_s,
                wire_bytes=p.wire_bytes_per_device,
            )


def scaling(data: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Fig. 15: net, what, published and predicted time of an exchange over that of WA with 4 workers."""
    for net, facts in data["nets"].items():
        base = one_step(data, net, "WA", nodes_of(data, "WA"), 1.0)
        for name, system, workers in (("wa_8", "WA", 8), ("inc_4", "INC", 4), ("inc_8", "INC", 8)):
            p = one_step(data, net, system, nodes_of(data, system, workers), 1.0)
            yield net, name, facts["exchange"][name], p.exposed_comm_s / base.exposed_comm_s


def orderings(data: dict[str, Any], rows: list[Row]) -> list[tuple[str, int, int]]:
    """Name, in how many networks the prediction keeps it, of how many."""
    by = {(r.net, r.system): r.step for r in rows}
    nets = list(data["nets"])
    kept = sum(all(by[n, a] < by[n, b] for a, b in pairwise(ORDER)) for n in nets)
    ring = sum(by[n, "WA"] - by[n, "INC"] > by[n, "INC"] - by[n, "INC+C"] for n in nets)
    return [
        ("step time: INC+C < INC < WA+C < WA", kept, len(nets)),
        ("the ring saves more than compressing it", ring, len(nets)),
    ]


def summary(rows: list[Row]) -> dict[str, float]:
    """Median absolute relative errors of the step, by system, of the speed-up over WA, and of communication."""
    by = {(r.net, r.system): r for r in rows}
    errors = {f"step, {s}": median(abs(r.error) for r in rows if r.system == s) for s in SYSTEMS}
    gains = [
        abs((by[r.net, "WA"].step / r.step) / (by[r.net, "WA"].published / r.published) - 1) for r in rows if r.system != "WA"
    ]
    comm = [abs(r.comm / r.published_comm - 1) for r in rows if r.published_comm]
    return {
        **errors,
        "step, all": median(abs(r.error) for r in rows),
        "speed-up": median(gains),
        "communication, WA and INC": median(comm),
    }


def report(data: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """The tables, the orderings and the errors as lines of at most 100 columns."""
    yield f"Published: {data['source']}."
    yield f"  {data['caveat'].partition(':')[0]}"
    yield f"{data['workers']} workers, {data['network']}; step times in seconds. WA and WA+C have a separate aggregator."
    yield "In column 'rank 0' the first worker aggregates, as in Paceline."
    yield ""
    yield f"{'':<18}{'---- published ----':>19}  {'-------------------- predicted --------------------':>51}"
    yield (
        f"{'net':<10}{'system':<8}{'step':>9}{'/ WA':>5}{'comm.':>6} {'step':>10}{'/ WA':>6} {'range':>16} "
        f"{'error':>6}{'comm.':>8}{'rank 0':>9}"
    )
    first = {r.net: r for r in rows if r.system == "WA"}
    for r in rows:
        wa = first[r.net]
        comm = f"{r.published_comm:6.3f}" if r.published_comm else f"{'-':>6}"
        yield (
            f"{data['nets'][r.net]['title']:<10}{r.system:<8}{r.published:9.4f}{r.published / wa.published:5.2f}{comm} "
            f"{r.step:10.4f}{r.step / wa.step:6.2f} {f'{r.low:.3f} to {r.high:.3f}':>16} {r.error:+6.0%}{r.comm:8.3f} "
            f"{r.ours:9.4f}"
        )
    yield ""
    yield "Exchange time over that of WA with 4 workers (Fig. 15), published / predicted"
    cells: dict[str, list[str]] = {}
    for net, _, published, predicted in scaling(data):
        cells.setdefault(net, []).append(f"{published:6.2f} / {predicted:4.2f}")
    yield f"  {'':<12}{'WA, 8':>13}{'INC, 4':>13}{'INC, 8':>13}"
    for net, ratios in cells.items():
        yield f"  {data['nets'][net]['title']:<12}" + "".join(f"{cell:>13}" for cell in ratios)
    yield ""
    yield "Orderings: networks in which the prediction keeps it"
    for name, kept, total in orderings(data, rows):
        yield f"  {name:<44}{kept}/{total}{'' if kept == total else '  FAILS'}"
    yield ""
    yield "Median error: " + ", ".join(f"{name} {value:.0%}" for name, value in list(summary(rows).items())[:4])
    yield "  " + ", ".join(f"{name} {value:.0%}" for name, value in list(summary(rows).items())[4:])


def write_csv(path: Path, rows: list[Row]) -> None:
    """The rows with date, commit and environment in every line."""
    where = environment(packages=("numpy",))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*asdict(rows[0]), "error", *where])
        for row in rows:
            values = [*asdict(row).values(), row.error]
            table.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values] + list(where.values()))


def main(argv: list[str] | None = None) -> int:
    """Print the comparison; 1 when an ordering fails."""
    parser = argparse.ArgumentParser(description="Predicted against published step times of INCEPTIONN.")
    parser.add_argument("--json", action="store_true", help="print rows, orderings and errors as JSON")
    parser.add_argument("--out", type=Path, help="write the rows as CSV")
    options = parser.parse_args(argv)
    data = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    rows = list(make_rows(data))
    kept = orderings(data, rows)
    if options.json:
        every = [{**asdict(r), "error": r.error} for r in rows]
        print(json.dumps({"rows": every, "orderings": kept, **summary(rows)}, indent=1))
    else:
        print("\n".join(report(data, rows)))
    if options.out:
        write_csv(options.out, rows)
    return int(any(found < total for _, found, total in kept))


if __name__ == "__main__":
    sys.exit(main())
