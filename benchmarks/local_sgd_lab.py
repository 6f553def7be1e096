"""Local steps over slow links on an emulated cluster: DiLoCo and Local SGD beside TernGrad and dense, equal samples.

    python benchmarks/local_sgd_lab.py --out RESULTS/local_sgd_lab.csv --picture RESULTS/local_sgd_lab.svg
    python benchmarks/local_sgd_lab.py --out RESULTS/local_sgd_lab.csv --draw RESULTS/local_sgd_lab.svg

RESULTS is benchmarks/results; --draw measures nothing. Every case trains the same network from the same weights on the same
samples, with the same inner rate. The outer momentum is 0.5. The published 0.9 goes with AdamW; behind momentum SGD it loses
accuracy here, as one case shows. 0.5 was chosen after that was seen. Training, codecs, sockets and shaped links are real. A
sleep in the forward pass stands for an accelerator's compute. The predictions know a step of workers that exchange nothing, the
link's nominal rate, and the bytes that a strategy sends; no row of the lab is fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lab_cases
from local_rank import NEVER
from rows import append, read

from paceline.workload import Workload

COLUMNS = (
    "model",
    "data",
    "hosts",
    "link",
    "method",
    "compression",
    "sync_every",
    "fragments",
    "sync_delay",
    "outer_lr",
    "outer_momentum",
    "seed",
    "steps",
    "samples",
    "compute_s",
    "step_s",
    "step_low_s",
    "step_high_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "error",
    "socket_bytes",
    "metered_bytes",
    "predicted_bytes",
    "loss",
    "accuracy",
    "speed_up",
)
PACE_S = 0.05
ALONE = {"method": "alone", "compression": "dense", "local": {"sync_every": NEVER}}
CAPTION = "emulated: a sleep stands for compute; training, exchange and {hosts} shaped links are real; equal samples"


def cases(every: list[int]) -> list[dict[str, Any]]:
    """What is compared, the worker that exchanges nothing first."""
    local: list[dict[str, Any]] = []
    for h in every:
        whole = {"sync_every": h, "outer_momentum": 0.5}
        streamed = {**whole, "fragments": 4, "sync_delay": max(1, h // 8)}
        local += [
            {"method": f"DiLoCo {h}", "compression": "dense", "local": whole},
            {"method": f"DiLoCo {h} int8", "compression": "int8", "local": whole},
            {"method": f"streaming {h}", "compression": "dense", "local": streamed},
            {"method": f"streaming {h} int8", "compression": "int8", "local": streamed},
        ]
    plain = {"sync_every": every[0], "outer_lr": 1.0, "outer_momentum": 0.0}
    published = {"sync_every": every[-1], "outer_momentum": 0.9}
    return [
        ALONE,
        {"method": "dense", "compression": "dense"},
        {"method": "TernGrad", "compression": "terngrad"},
        *local,
        {"method": f"Local SGD {every[0]}", "compression": "dense", "local": plain},
        {"method": f"DiLoCo {every[-1]}, 0.9", "compression": "dense", "local": published},
    ]


def measure(link: str, seed: int, o: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case over one link."""
    table = Workload.named(o.model)
    spec = {
        "model": o.model,
        "data": o.data,
        "batch": o.batch,
        "steps": o.steps,
        "warm": 2,
        "lr": o.lr,
        "pace_s": o.pace,
        "seed": seed,
    }
    with lab_cases.cluster(o.hosts, link) as on:
        outcomes = lab_cases.run(on, spec, cases(o.every), timeout=o.timeout, script="local_rank.py")
    compute = outcomes[0]["step_s"]
    rows: list[dict[str, Any]] = []
    for case in outcomes[1:]:
        rows.append(row(case, link, seed, compute, table, o, rows))
        show(rows[-1])
    return rows


def row(
    case: Mapping[str, Any],
    link: str,
    seed: int,
    compute: float,
    table: Workload,
    o: argparse.Namespace,
    before: list[dict[str, Any]],
) -> dict[str, Any]:
    """One case beside its prediction; ``before``: the rows of this link, dense first."""
    local = {"sync_every": 1, "fragments": 1, "sync_delay": 0, "outer_lr": "", "outer_momentum": "", **case.get("local", {})}
    # The sleep is in the forward pass: what follows it is too short to hide an exchange. A delayed one runs beside whole steps.
    guess = lab_cases.predicted(table, o.hosts, link, case, compute, 0.0, overlap=local["sync_delay"] > 0)
    base = before[0]["step_s"] if before else case["step_s"]
    found = {
        "model": o.model,
        "data": o.data.partition(":")[0],
        "hosts": o.hosts,
        "link": link,
        **{name: case[name] for name in ("method", "compression", "steps", "step_s", "step_low_s", "step_high_s")},
        **{name: local[name] for name in ("sync_every", "fragments", "sync_delay", "outer_lr", "outer_momentum")},
        "seed": seed,
        "samples": case["steps"] * o.batch * o.hosts,
        "compute_s": compute,
        "predicted_s": guess.step_time_s,
        "predicted_low_s": guess.low_s,
        "predicted_high_s": guess.high_s,
        "error": guess.step_time_s / case["step_s"] - 1,
        "socket_bytes": case["socket_bytes"],
        "metered_bytes": case["metered_bytes"],
        "predicted_bytes": guess.wire_bytes_per_device,
        "loss": case["loss"],
        "accuracy": case["accuracy"],
        "speed_up": base / case["step_s"],
    }
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}


def show(found: Mapping[str, Any]) -> None:
    """One line of the table."""
    print(
        f"  {found['link']:9} {found['method']:20} step {found['step_s']:.4g} s, predicted {found['predicted_s']:.4g}"
        f" ({found['predicted_low_s']:.3g}-{found['predicted_high_s']:.3g}), {found['speed_up']:.1f}x dense;"
        f" {found['metered_bytes']:,} bytes a step, predicted {found['predicted_bytes']:,}; held out: loss {found['loss']:.4f},"
        f" accuracy {found['accuracy']:.2%}",
        flush=True,
    )


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Steps, measured and predicted, and what was learned from equal samples: a column a link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = list(dict.fromkeys(r["link"] for r in rows))
    figure, axes = pyplot.subplots(2, len(links), figsize=(4.6 * len(links), 5.4), squeeze=False, sharex="col")
    for column, link in enumerate(links):
        mine = [r for r in rows if r["link"] == link]
        methods = list(dict.fromkeys(r["method"] for r in mine))
        above, below = axes[0][column], axes[1][column]
        for i, method in enumerate(methods):
            own = [r for r in mine if r["method"] == method]
            labels = ("measured", "predicted") if not i else (None, None)
            above.bar(i - 0.2, sum(r["step_s"] for r in own) / len(own), 0.4, color="#3b6ea8", label=labels[0])
            above.bar(i + 0.2, sum(r["predicted_s"] for r in own) / len(own), 0.4, color="#c9a24b", label=labels[1])
            below.plot([i] * len(own), [100 * r["accuracy"] for r in own], "o", color="#3b6ea8")
        above.set_yscale("log")
        above.set_title(link, loc="left", fontsize=10, fontweight="bold")
        below.set_xticks(range(len(methods)), methods, rotation=60, fontsize=7)
        for axis in (above, below):
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("seconds a step")
    axes[1][0].set_ylabel("accuracy, equal samples, %")
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.suptitle(CAPTION.format(hosts=rows[0]["hosts"]), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet5", help="a named network with a layer table")
    parser.add_argument("--data", default="digits", help="as of paceline train")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", nargs="+", default=["10Mb/s", "100Mb/s"])
    parser.add_argument("--every", type=int, nargs="+", default=[8, 32], help="local steps")
    parser.add_argument("--steps", type=int, default=320, help="of every case; a multiple of all of --every")
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker's step")
    parser.add_argument("--lr", type=float, default=0.02, help="of SGD with momentum 0.9, in every case")
    parser.add_argument("--pace", type=float, default=PACE_S, help="seconds of sleep a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--timeout", type=float, default=14400, help="seconds for all cases of a link and seed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    if any(o.steps % h or o.steps < 2 * h for h in o.every):
        parser.error("--steps must be a multiple of every number of local steps, two rounds at least")
    rows: list[dict[str, Any]] = []
    print(CAPTION.format(hosts=o.hosts), flush=True)
    for link in map(lab_cases.actual, o.links):
        for seed in o.seeds:
            for found in measure(link, seed, o):
                append(o.out, COLUMNS, found)
                rows.append(found)
    if o.picture:
        picture(rows, o.picture)


if __name__ == "__main__":
    main()
