"""Compression in the network card, run end to end: unmodified PyTorch and gloo on emulated hosts whose cards compress.

    python benchmarks/nic_lab.py --data mnist:DIR --out RESULTS/nic_lab.csv --picture RESULTS/nic_lab.svg
    python benchmarks/nic_lab.py --out RESULTS/nic_lab.csv --draw RESULTS/nic_lab.svg

RESULTS is benchmarks/results. The network is INCEPTIONN's HDC (5.6 MB of gradients), trained for real. Every link has the
paper's four systems, the codec once on the host's processor and once in the card. What needs no card runs in a lab without
cards; ``dense, through the card`` shows what the user-space card itself costs. All hosts and all cards share this machine's
processors: a card that is a process takes time from the host, which a card of hardware would not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rows import append, read

from paceline import lab
from paceline.units import parse_bandwidth

HERE = Path(__file__).parent
BOUND = 2.0**-10
LOSS_SCALE = 16.0
"""The bound is absolute. Without a scale some layers of HDC lose all of their gradient, and the whole up to a third."""
COLUMNS = (
    "network",
    "data",
    "hosts",
    "link",
    "system",
    "codec_at",
    "bound",
    "loss_scale",
    "steps",
    "step_s",
    "exchange_s",
    "exchange_low_s",
    "exchange_high_s",
    "repeats",
    "codec_s",
    "link_mb",
    "ratio",
    "comm_cut",
    "test_accuracy",
    "replicas_equal",
    "weights",
)
CODED = {"compression": "inceptionn", "options": {"bound": BOUND}}
ONE_WAY = {**CODED, "exchange": "parameter_server", "compress_pull": False}
WITHOUT_CARDS: dict[str, dict[str, Any]] = {
    "WA": {"compression": "dense", "exchange": "parameter_server"},
    "WA + C": {**ONE_WAY, "codec_at": "host"},
    "INC": {"compression": "dense", "exchange": "ring"},
    "INC + C": {**CODED, "exchange": "ring", "codec_at": "host"},
}
WITH_CARDS: dict[str, dict[str, Any]] = {
    "dense, through the card": {"compression": "dense", "exchange": "ring"},
    "WA + C": {**ONE_WAY, "codec_at": "nic"},
    "INC + C": {**CODED, "exchange": "ring", "codec_at": "nic"},
}
WITH_SWITCH: dict[str, dict[str, Any]] = {
    "switch": {"compression": "dense", "exchange": "switch"},
    "ring, ternary": {"compression": "terngrad", "exchange": "ring"},
    "switch, ternary": {"compression": "terngrad", "exchange": "switch"},
}
PLACES = {"": "", "host": ", host", "nic": ", card"}
STEPS = {"10Mb/s": 20, "100Mb/s": 20, "1Gb/s": 150}
"""Steps of training by link: a quarter of an epoch of MNIST at 1 Gb/s; at the slower ones enough to compare the weights."""
SPEC = "inceptionn,bound=2^-10"
IN_THE_LOOP = "INC + C, the engine's Verilog"


def measure(link: str, o: argparse.Namespace) -> list[dict[str, Any]]:
    """All systems at one link."""
    steps = o.steps or STEPS.get(link, 20)
    rows: list[dict[str, Any]] = []
    labs: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
        ({}, WITHOUT_CARDS),
        ({"nic": SPEC}, WITH_CARDS),
        ({"switch_adds": True}, WITH_SWITCH),
    ]
    if o.engine and link == o.links[0]:
        labs.append(({"nic": f"{SPEC},engine={o.engine}"}, {IN_THE_LOOP: WITH_CARDS["INC + C"]}))
    for number, (extra, systems) in enumerate(labs):
        with lab.up(o.hosts, link, f"n{os.getpid()}-{number}", **extra) as cluster:
            results = run(cluster, systems, steps, o)
        for result in results:
            case = systems[result["label"]]
            base = rows[0] if rows else result
            row = {
                "network": "hdc",
                "data": o.data.partition(":")[0],
                "hosts": o.hosts,
                "link": link,
                "system": result["label"],
                "codec_at": case.get("codec_at", "" if case["compression"] == "dense" else "host"),
                "bound": BOUND if case["compression"] == "inceptionn" else "",
                "repeats": o.repeats,
                "loss_scale": LOSS_SCALE,
                "link_mb": result["link_bytes"] / 1e6,
                **{k: result[k] for k in ("steps", "step_s", "exchange_s", "exchange_low_s", "exchange_high_s", "codec_s")},
                **{k: result[k] for k in ("test_accuracy", "replicas_equal", "weights")},
            }
            row["ratio"] = (base["link_mb"] if rows else row["link_mb"]) / row["link_mb"]
            row["comm_cut"] = 1 - row["exchange_s"] / base["exchange_s"]
            rows.append({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
            show(rows[-1])
    return rows


def run(cluster: Any, systems: dict[str, dict[str, Any]], steps: int, o: argparse.Namespace) -> list[dict[str, Any]]:
    """What rank 0 measured of each system. Raises lab.HostFailed when a host fails."""
    spec = {
        "data": o.data,
        "batch_per_worker": 25,
        "lr": 0.1,
        "loss_scale": LOSS_SCALE,
        "seed": 0,
        "steps": steps,
        "repeats": o.repeats,
        "cases": [{"label": name, **case} for name, case in systems.items()],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        try:
            results = cluster.run([sys.executable, str(HERE / "nic_rank.py"), str(path)], env=environment, timeout=o.timeout)
        except lab.HostFailed as error:
            print(next((r.stderr for r in error.results if r.host == error.host), ""), file=sys.stderr)
            raise
    lines = [line.partition("RESULT ")[2] for line in results[0].stdout.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in lines]


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    place = {"host": "on the host", "nic": "in the card"}.get(row["codec_at"], "")
    print(
        f"  {row['link']:8} {row['system']:24} {place:12} exchange {row['exchange_s']:.4g} s"
        f" ({row['exchange_low_s']:.3g}-{row['exchange_high_s']:.3g}), {row['link_mb']:.2f} MB on the busiest link,"
        f" communication cut {row['comm_cut']:.1%}, replicas {'equal' if row['replicas_equal'] else 'DIFFER'},"
        f" accuracy {row['test_accuracy']:.2%} after {row['steps']} steps",
        flush=True,
    )


def gains(rows: list[dict[str, Any]], link: str, system: str) -> tuple[float, float]:
    """Times as fast as with the codec on the host: with a card that costs nothing, and with the card of the lab.

    The first saves the host what its codec was measured to take beside its sums, which stay; no card can save more.
    """
    own = {r["codec_at"]: r for r in rows if (r["link"], r["system"]) == (link, system)}
    host, card = own["host"], own["nic"]
    whole = host["exchange_s"]
    codec_s = max(0.0, host["codec_s"] - card["codec_s"])
    return whole / (whole - codec_s), whole / card["exchange_s"]


def draw_gains(axis: Any, rows: list[dict[str, Any]], links: list[str]) -> None:
    """From which link on a card would pay, over the links' rates."""
    links = sorted(links, key=parse_bandwidth)
    rates = [parse_bandwidth(link) * 8e-6 for link in links]
    for system, marker in (("WA + C", "s"), ("INC + C", "o")):
        free, run = zip(*(gains(rows, link, system) for link in links), strict=True)
        axis.plot(rates, free, marker=marker, color="#7fb069", label=f"{system}, a card that costs nothing")
        axis.plot(rates, run, marker=marker, color="#3b6ea8", label=f"{system}, the card of the lab")
    axis.axhline(1, color="k", lw=0.6)
    axis.set_xscale("log")
    axis.set_xlabel("link, Mb/s", fontsize=8)
    axis.set_title("times as fast as codec on host", loc="left", fontsize=10, fontweight="bold")
    axis.legend(frameon=False, fontsize=7)


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds of an exchange by link, a bar for each system and place of the codec; and what a card gains."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = list(dict.fromkeys(r["link"] for r in rows))
    systems = list(dict.fromkeys((r["system"], r["codec_at"]) for r in rows))
    figure, axes = pyplot.subplots(1, len(links) + 1, figsize=(3.4 * len(links) + 3.6, 4.2), squeeze=False)
    colours = {"": "#8a8f98", "host": "#c9a24b", "nic": "#3b6ea8"}
    for axis, link in zip(axes[0], links, strict=False):
        own = {(r["system"], r["codec_at"]): r for r in rows if r["link"] == link}
        for place, key in enumerate(systems):
            if key not in own:
                continue
            row = own[key]
            low, high = row["exchange_s"] - row["exchange_low_s"], row["exchange_high_s"] - row["exchange_s"]
            axis.barh(place, row["exchange_s"], color=colours[key[1]], xerr=[[max(0, low)], [max(0, high)]], height=0.7)
        axis.set_yticks(range(len(systems)), [f"{system}{PLACES[place]}" for system, place in systems], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"links of {link}", loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("seconds of one exchange", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[0][1:-1]:
        axis.set_yticklabels([])
    draw_gains(axes[0][-1], rows, links)
    hosts = rows[0]["hosts"]
    heading = (
        f"HDC (1.4 million gradients), {hosts} hosts, all on one machine; median and range of {rows[0]['repeats']} exchanges"
    )
    figure.suptitle(heading, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", default=list(STEPS))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--data", default="digits", help="digits, or mnist:DIR")
    parser.add_argument("--steps", type=int, help="of training, at every link; default by link")
    parser.add_argument("--repeats", type=int, default=5, help="exchanges that are timed")
    parser.add_argument("--engine", type=Path, help="what `paceline nic engine` prints: one more run, at the first link")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one lab's run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    rows = []
    for link in o.links:
        measured = measure(link, o)
        for row in measured:
            append(o.out, COLUMNS, row)
        rows += measured
    if o.picture:
        picture(rows, o.picture)


if __name__ == "__main__":
    main()
