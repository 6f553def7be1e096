"""TernGrad's speed-up on an emulated cluster: the exchange is real, over 100 Mb/s, 1 Gb/s and 10 Gb/s.

    python benchmarks/speedup_lab.py --gradients FOLDER --out RESULTS/speedup_lab.csv --picture RESULTS/speedup_lab.svg
    python benchmarks/speedup_lab.py --out RESULTS/speedup_lab.csv --draw RESULTS/speedup_lab.svg

RESULTS is benchmarks/results; --draw measures nothing. Cases that the file has are not run again. Gradients are those that
were recorded in FOLDER (``recorded_gradients.py``), else made up: of the sizes of AlexNet, GoogLeNet and VGG-A, with values
that are Student-t noise (4 degrees of freedom), half of it common to all workers. TernGrad's bytes do not depend on values.
Compute is a sleep of one GPU's published step (TernGrad's performance model: samples/s of one GPU, 64, 64 and 32 samples). A
third of it is the forward pass. The backward pass is spread over the layers by FLOPs, and the exchange overlaps it, as in DDP.
Dense is stock DistributedDataParallel.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import lab_cases
from rows import append, read

from paceline.workload import Workload

COLUMNS = (
    "network",
    "gradients",
    "gradient_mb",
    "hosts",
    "link",
    "compression",
    "step_s",
    "step_low_s",
    "step_high_s",
    "steps",
    "exchange_s",
    "codec_s",
    "compute_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "socket_mb",
    "speed_up",
    "predicted_speed_up",
)
CASE = ("network", "gradients", "hosts", "link", "steps")
"""Columns that tell clusters and what they exchange apart."""
COMPUTE_S = {"alexnet": 64 / 394, "googlenet": 64 / 174, "vgg-a": 32 / 95}
"""Seconds of a step on one GPU: samples / published rate (TernGrad, performance model, fp32, one GPU)."""
CASES = ({"compression": "torch:dense"}, {"compression": "terngrad"})


def measure(net: str, hosts: int, link: str, steps: int, recorded: Path | None = None) -> list[dict[str, Any]]:
    """Dense and TernGrad of one network on one cluster."""
    table, compute = Workload.named(net), COMPUTE_S[net]
    gradient, said = lab_cases.gradients(recorded, net, lab_cases.NOISE, {})
    spec = {**lab_cases.overlapped(table, compute, 1, lab_cases.enough(link, steps)), "gradient": gradient}
    rows: list[dict[str, Any]] = []
    with lab_cases.cluster(hosts, link) as on:
        outcomes = lab_cases.run(on, spec, CASES)
    for case in outcomes:
        guess = lab_cases.predicted(table, hosts, link, case, compute, 0.0, overlap=True)
        row = {
            "network": net,
            "gradients": said,
            "gradient_mb": round(4 * table.num_parameters / 1e6, 1),
            "hosts": hosts,
            "link": link,
            "compression": case["compression"].removeprefix("torch:"),
            "compute_s": compute,
            "predicted_s": guess.step_time_s,
            "predicted_low_s": guess.low_s,
            "predicted_high_s": guess.high_s,
            "socket_mb": round(case["socket_bytes"] / 1e6, 2),
            **{k: case[k] for k in ("step_s", "step_low_s", "step_high_s", "steps", "exchange_s", "codec_s")},
        }
        base = rows[0] if rows else row
        row |= {"speed_up": base["step_s"] / row["step_s"], "predicted_speed_up": base["predicted_s"] / row["predicted_s"]}
        rows.append({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
        print(
            f"  {net:10} {hosts} hosts {link:8} {row['compression']:9} step {row['step_s']:.3g} s"
            f" ({row['step_low_s']:.3g}-{row['step_high_s']:.3g}), predicted {row['predicted_s']:.3g}"
            f" ({row['predicted_low_s']:.3g}-{row['predicted_high_s']:.3g}); speed-up {row['speed_up']:.2f},"
            f" predicted {row['predicted_speed_up']:.2f}",
            flush=True,
        )
    return rows


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed-up against hosts: a panel a link, a line a network; dashed is predicted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = list(dict.fromkeys(r["link"] for r in rows))
    figure, axes = pyplot.subplots(1, len(links), figsize=(3.4 * len(links), 3.2), sharey=True, squeeze=False)
    for axis, link in zip(axes[0], links, strict=True):
        for colour, net in zip(("#3b6ea8", "#b5523b", "#4c8a4c"), COMPUTE_S, strict=True):
            mine = [r for r in rows if r["network"] == net and r["link"] == link and r["compression"] == "terngrad"]
            mine.sort(key=lambda r: r["hosts"])
            hosts = [r["hosts"] for r in mine]
            axis.plot(hosts, [r["speed_up"] for r in mine], "o-", color=colour, label=net)
            axis.plot(hosts, [r["predicted_speed_up"] for r in mine], "x--", color=colour, alpha=0.7)
        axis.axhline(1, color="#999", lw=0.8)
        axis.set_title(link, loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("hosts")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("step of dense DDP / step of TernGrad")
    axes[0][-1].legend(frameon=False, fontsize=7)
    caption = lab_cases.EMULATED.format(gradients=lab_cases.named(rows, lab_cases.NOISE))
    figure.suptitle(f"{caption}\nsolid measured, dashed predicted", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(COMPUTE_S))
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--links", nargs="+", default=["10Gb/s", "1Gb/s", "100Mb/s"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gradients", type=Path, metavar="FOLDER", help="recorded ones; default: made up")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    print("emulated: compute is a sleep, the exchange is real; all hosts share this machine's cores", flush=True)
    there = {tuple(r.get(name) for name in CASE) for r in read(o.out)} if o.out.exists() else set()
    for link, net, hosts in product(map(lab_cases.actual, o.links), o.networks, o.hosts):
        _, said = lab_cases.gradients(o.gradients, net, lab_cases.NOISE, {})
        if (net, said, hosts, link, lab_cases.enough(link, o.steps)) not in there:
            for row in measure(net, hosts, link, o.steps, o.gradients):
                append(o.out, COLUMNS, row)
    if o.picture:
        picture(read(o.out), o.picture)


if __name__ == "__main__":
    main()
