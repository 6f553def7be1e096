"""Asynchronous SGD with parameter servers, predicted from one worker and measured: 1 to 8 workers, 1, 2 servers, three links.

    python benchmarks/async_lab.py --out RESULTS/async_lab.csv --picture RESULTS/async_lab.svg
    python benchmarks/async_lab.py --out RESULTS/async_lab.csv --draw RESULTS/async_lab.svg

RESULTS is benchmarks/results; --draw measures nothing. One worker and one server on loopback give the profile: seconds of a
layer, an update and a message. Every combination is predicted from it and from the nominal rate of the links alone. Then
it runs on an emulated cluster, every worker and server on a host of its own (``async_rank.py``: compute is a sleep, gradients
are those of a quadratic function, messages and updates are real).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab_cases
import numpy as np
from rows import append, read

from paceline import lab
from paceline.prediction.asynchronous import AsyncResult, Profile, WorkerLayer, simulate
from paceline.units import parse_bandwidth

COLUMNS = (
    "link",
    "workers",
    "servers",
    "repeats",
    "seconds",
    "model_mb",
    "compute_s",
    "updates_per_s",
    "low",
    "high",
    "predicted",
    "predicted_low",
    "predicted_high",
    "error",
    "staleness",
    "staleness_low",
    "staleness_high",
    "predicted_staleness",
    "cores_used",
    "bottleneck",
    "shares",
    "predicted_shares",
)
HERE = Path(__file__).parent
MODEL = 500_000
"""Elements of the model: two megabytes."""
SHARES = (0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.15)
"""Of the layers in the elements; of the time all have the same."""
COMPUTE_S, SPREAD, BATCH = 0.1, 0.1, 32


@dataclass(frozen=True)
class Measured:
    """One run: updates a second of all workers, staleness of the updates in its window, cores that all ranks kept busy."""

    updates_per_s: float
    stale: Counter[int]
    cores: float

    @property
    def staleness(self) -> float:
        """Its mean."""
        return sum(k * n for k, n in self.stale.items()) / max(1, self.stale.total())


def layers() -> list[dict[str, float]]:
    """What every worker computes: elements and seconds of each layer, a third of them forward."""
    each = COMPUTE_S / len(SHARES)
    return [{"elements": round(MODEL * share), "forward_s": each / 3, "backward_s": each * 2 / 3} for share in SHARES]


def run(on: Any, servers: int, cases: Sequence[dict[str, Any]], warm_s: float) -> list[dict[str, Any]]:
    """The cases on a lab whose first ``servers`` hosts serve. Raises lab.HostFailed."""
    spec = {"layers": layers(), "spread": SPREAD, "servers": servers, "warm_s": warm_s, "cases": cases}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        try:
            results = on.run([sys.executable, str(HERE / "async_rank.py"), str(path)], env=environment, timeout=1800)
        except lab.HostFailed as error:
            print(next((r.stderr for r in error.results if r.host == error.host), ""), file=sys.stderr)
            raise
    return [json.loads(x.partition("RESULT ")[2]) for x in results[0].stdout.splitlines() if "RESULT " in x]


def profile(seconds: float) -> tuple[Profile, float]:
    """One worker and one server on loopback: the profile, and the seconds of a message."""
    (case,) = run(lab.loopback(2), 1, [{"workers": 1, "servers": 1, "seconds": seconds, "seed": 1}], 0.0)
    computed = np.array(case["ranks"][1]["computed"])[1:-1]  # step, pass, layer; not the first and the last
    updates = np.array(case["ranks"][0]["updates"])
    per_byte, fixed = np.polyfit(updates[:, 0], updates[:, 1], 1)
    layer_profiles = [
        WorkerLayer(
            name=f"layer {i}",
            size=4 * layer["elements"],
            forward_s=tuple(computed[:, 0, i].tolist()),
            backward_s=tuple(computed[:, 1, i].tolist()),
        )
        for i, layer in enumerate(layers())
    ]
    paced = Profile(
        name="paced",
        batch_size=BATCH,
        layers=tuple(layer_profiles),
        update_s_per_byte=max(0.0, per_byte),
        update_s=max(0.0, fixed),
    )
    return paced, case["round_trip_s"] / 2


def measured(case: dict[str, Any]) -> Measured:
    """Of one case: sum over the workers of steps over the seconds that they took, within the window."""
    begin, end = case["begin"], case["end"]
    rate, stale = 0.0, Counter[int]()
    for rank in case["ranks"]:
        inside = [at for at in rank.get("steps", []) if begin <= at <= end]
        rate += (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 1 else 0.0
        stale.update({int(k): n for k, n in rank.get("stale", {}).items()})
    cores = sum(rank["cpu_s"] for rank in case["ranks"]) / (end - case["start"])
    return Measured(rate, stale, cores)


def row(link: str, workers: int, servers: int, runs: Sequence[Measured], guess: AsyncResult, seconds: float) -> dict[str, Any]:
    """A row of the results: medians and extremes of the repetitions beside the prediction."""
    rates, stale = [r.updates_per_s for r in runs], [r.staleness for r in runs]
    pooled = sum((r.stale for r in runs), Counter[int]())
    shares = [round(pooled[k] / max(1, pooled.total()), 4) for k in range(max(pooled, default=0) + 1)]
    values = {
        "link": link,
        "workers": workers,
        "servers": servers,
        "repeats": len(runs),
        "seconds": seconds,
        "model_mb": 4 * MODEL / 1e6,
        "compute_s": COMPUTE_S,
        "updates_per_s": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "predicted": guess.updates_per_s,
        "predicted_low": guess.low_samples_per_s / BATCH,
        "predicted_high": guess.high_samples_per_s / BATCH,
        "error": guess.updates_per_s / statistics.median(rates) - 1,
        "staleness": statistics.median(stale),
        "staleness_low": min(stale),
        "staleness_high": max(stale),
        "predicted_staleness": guess.mean_staleness,
        "cores_used": max(r.cores for r in runs),
        "bottleneck": guess.bottleneck,
        "shares": json.dumps(shares),
        "predicted_shares": json.dumps([round(x, 4) for x in guess.staleness]),
    }
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Mean absolute errors by link."""
    lines = []
    for link in [*dict.fromkeys(r["link"] for r in rows), "all"]:
        mine = [r for r in rows if link in (r["link"], "all")]
        stale = [r for r in mine if r["workers"] > 1]
        errors = [abs(r["error"]) for r in mine]
        inside = sum(r["predicted_low"] <= r["updates_per_s"] <= r["predicted_high"] for r in mine)
        line = (
            f"{link:8} throughput MAPE {statistics.fmean(errors):.1%} (worst {max(errors):.1%}), {inside} of {len(mine)} inside"
        )
        if stale:
            off = statistics.fmean(abs(r["predicted_staleness"] / r["staleness"] - 1) for r in stale if r["staleness"])
            line += f"; mean staleness MAPE {off:.1%}"
        lines.append(line)
    return "\n".join(lines)


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Throughput against workers by link, and the staleness of the most workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = list(dict.fromkeys(r["link"] for r in rows))
    figure, axes = pyplot.subplots(2, len(links), figsize=(3.4 * len(links), 5.4), squeeze=False)
    for column, link in enumerate(links):
        top, bottom = axes[0][column], axes[1][column]
        for colour, servers in zip(("#3b6ea8", "#b5523b"), sorted({r["servers"] for r in rows}), strict=False):
            mine = [r for r in rows if r["link"] == link and r["servers"] == servers]
            n, label = [r["workers"] for r in mine], f"{servers} server{'s' * (servers > 1)}"
            rates = [r["updates_per_s"] for r in mine]
            spread = [[r["updates_per_s"] - r["low"] for r in mine], [r["high"] - r["updates_per_s"] for r in mine]]
            top.errorbar(n, rates, spread, fmt="o", color=colour, label=label, ms=4)
            top.plot(n, [r["predicted"] for r in mine], "--", color=colour)
            top.fill_between(
                n, [r["predicted_low"] for r in mine], [r["predicted_high"] for r in mine], color=colour, alpha=0.15
            )
            most = max(mine, key=lambda r: r["workers"])
            shares, guess = json.loads(most["shares"]), json.loads(most["predicted_shares"])
            bottom.bar([k + 0.4 * (servers - 1.5) for k in range(len(shares))], shares, 0.4, color=colour, alpha=0.5)
            bottom.plot([k + 0.4 * (servers - 1.5) for k in range(len(guess))], guess, "x--", color=colour, ms=4, lw=0.8)
        top.set_title(link, loc="left", fontsize=10, fontweight="bold")
        top.set_xlabel("workers")
        bottom.set_xlabel(f"staleness, {max(r['workers'] for r in rows)} workers")
        for axis in (top, bottom):
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("updates/s")
    axes[0][0].legend(frameon=False, fontsize=7)
    axes[1][0].set_ylabel("share of updates")
    emulated = "emulated: compute is a sleep, gradients are of a quadratic function, messages are real"
    figure.suptitle(f"{emulated}; dots and bars measured, dashed predicted", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Profile, predict, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--links", nargs="+", default=["100Mb/s", "300Mb/s", "1Gb/s"])
    parser.add_argument("--seconds", type=float, default=12.0, help="of a run, after a quarter of it as warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two workers, one server, one link, two seconds, once")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    if o.quick:
        o.workers, o.servers, o.links, o.seconds, o.repeats = [2], [1], ["300Mb/s"], 2.0, 1
    if lacking := lab.missing():
        parser.error(f"no emulated cluster here: {', '.join(lacking)}")
    print("emulated: compute is a sleep; all hosts share this machine's cores", flush=True)
    known, latency = profile(min(6.0, 2 * o.seconds))
    print(
        f"profile: compute {known.compute_s:.4g} s, update {known.update_s:.3g} s + {known.update_s_per_byte:.3g} s/byte,"
        f" message {latency:.3g} s",
        flush=True,
    )
    combinations = [(n, m) for m in o.servers for n in o.workers]
    rows = []
    for link in o.links:
        guesses = {
            (n, m): simulate(known, n, m, link_bandwidth=parse_bandwidth(link), latency=latency, steps=200)
            for n, m in combinations
        }
        cases = [
            {"workers": n, "servers": m, "seconds": o.seconds, "seed": 100 + k}
            for k in range(o.repeats)
            for n, m in combinations
        ]
        with lab_cases.cluster(max(o.servers) + max(o.workers), link) as on:
            outcomes = run(on, max(o.servers), cases, o.seconds / 4)
        for n, m in combinations:
            runs = [measured(case) for case in outcomes if (case["workers"], case["servers"]) == (n, m)]
            rows.append(row(link, n, m, runs, guesses[n, m], o.seconds))
            append(o.out, COLUMNS, rows[-1])
            r = rows[-1]
            print(
                f"  {link:8} {n} workers {m} servers: {r['updates_per_s']:6.2f} updates/s ({r['low']:.2f}-{r['high']:.2f}),"
                f" predicted {r['predicted']:6.2f} ({r['error']:+.1%}); staleness {r['staleness']:.2f}, predicted"
                f" {r['predicted_staleness']:.2f}; {r['cores_used']:.2f} cores, {r['bottleneck']}",
                flush=True,
            )
    print(summary(rows))
    if o.picture:
        picture(rows, o.picture)


if __name__ == "__main__":
    main()
