"""Paceline's compressions beside what a user would take instead, PyTorch's hooks: same cluster, same run.

    python benchmarks/against_hooks.py --gradients FOLDER --out RESULTS/against_hooks.csv --picture RESULTS/against_hooks.svg
    python benchmarks/against_hooks.py --out RESULTS/against_hooks.csv --draw RESULTS/against_hooks.svg

RESULTS is benchmarks/results; --draw measures nothing. Gradients are AlexNet's that were recorded in FOLDER
(``recorded_gradients.py``), else made up: of its sizes, with values that are Student-t noise (4 degrees of freedom), half of
it common to all workers. What inceptionn-scaled sends depends on the values; what the others send does not. Compute is a sleep
of one GPU's published step. PyTorch's bf16 hook refuses CPUs, so ``paced.py`` repeats its three lines. PyTorch's PowerSGD hook
hangs on gloo with more than one bucket, so it runs behind ``attach()``, which passes it the buckets one after another.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lab_cases
from rows import append, read
from speedup_lab import COMPUTE_S

from paceline.workload import Workload

COLUMNS = (
    "network",
    "gradients",
    "gradient_mb",
    "hosts",
    "link",
    "label",
    "compression",
    "exchange",
    "way",
    "step_s",
    "step_low_s",
    "step_high_s",
    "steps",
    "exchange_s",
    "codec_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "socket_mb",
    "metered_mb",
    "times_dense",
    "times_bf16",
)
CASES: tuple[dict[str, Any], ...] = (
    {"label": "DDP", "compression": "torch:dense"},
    {"label": "PyTorch fp16 hook", "compression": "torch:fp16"},
    {"label": "PyTorch bf16 hook", "compression": "torch:bf16"},
    {"label": "PowerSGD rank 2", "compression": "powersgd", "options": {"rank": 2}},
    {"label": "PowerSGD rank 4", "compression": "powersgd", "options": {"rank": 4}},
    {"label": "bf16, sharded", "compression": "bf16", "exchange": "sharded"},
    {"label": "int8", "compression": "int8"},
    {"label": "int4", "compression": "int4"},
    {"label": "inceptionn-scaled, ring", "compression": "inceptionn-scaled", "exchange": "ring"},
    {"label": "TernGrad, sharded", "compression": "terngrad", "exchange": "sharded"},
    {"label": "TernGrad, ring", "compression": "terngrad", "exchange": "ring"},
    {"label": "sign", "compression": "sign"},
    {"label": "top 1 %", "compression": "topk"},
    {"label": "auto", "compression": "auto"},
)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="alexnet", choices=sorted(COMPUTE_S))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="1Gb/s", help="of every host; loopback has none to wait for (default 1Gb/s)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gradients", type=Path, metavar="FOLDER", help="recorded ones; default: made up")
    parser.add_argument("--warm", type=int, default=28, help="steps of auto that are not counted: it decides in them")
    parser.add_argument("--only", nargs="+", default=[case["label"] for case in CASES])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        drawn = read(o.out)
        given = {"hosts": drawn[0]["hosts"], "link": drawn[0]["link"]}
        picture(drawn, o.draw, lab_cases.HEADING.format(**given, gradients=lab_cases.named(drawn, lab_cases.NOISE)))
        return
    o.link = lab_cases.actual(o.link)
    table, compute = Workload.named(o.network), COMPUTE_S[o.network]
    gradient, said = lab_cases.gradients(o.gradients, o.network, lab_cases.NOISE, {})
    spec = {**lab_cases.overlapped(table, compute, o.warm, lab_cases.enough(o.link, o.steps)), "gradient": gradient}
    heading = lab_cases.HEADING.format(hosts=o.hosts, link=o.link, gradients=said)
    print(heading, flush=True)
    rows: list[dict[str, Any]] = []
    cases = [case for case in CASES if case["label"] in o.only]
    with lab_cases.cluster(o.hosts, o.link) as on:
        measured = lab_cases.run(on, spec, cases)
    steps = {case["label"]: case["step_s"] for case in measured}
    for case in measured:
        row = {
            "network": o.network,
            "gradients": said,
            "gradient_mb": round(4 * table.num_parameters / 1e6, 1),
            "hosts": o.hosts,
            "link": o.link,
            "socket_mb": round(case["socket_bytes"] / 1e6, 2),
            "metered_mb": round(case["metered_bytes"] / 1e6, 2),
            "times_dense": steps.get("DDP", float("nan")) / case["step_s"],
            "times_bf16": steps.get("PyTorch bf16 hook", float("nan")) / case["step_s"],
            **{k: case.get(k, "") for k in COLUMNS if k in case},
        }
        shown = "-"
        if case["compression"] != "auto" and o.link != "loopback":  # what auto chooses is known only when it runs
            guess = lab_cases.predicted(table, o.hosts, o.link, case, compute, 0.0, overlap=True)
            row |= {"predicted_s": guess.step_time_s, "predicted_low_s": guess.low_s, "predicted_high_s": guess.high_s}
            shown = f"{guess.step_time_s:.3g} ({guess.low_s:.3g}-{guess.high_s:.3g})"
        rows.append({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
        append(o.out, COLUMNS, rows[-1])
        print(
            f"  {case['label']:24} step {case['step_s']:.3g} s ({case['step_low_s']:.3g}-{case['step_high_s']:.3g}), predicted"
            f" {shown}, {row['socket_mb']:.4g} MB sent, {row['times_dense']:.2f}x dense, {row['times_bf16']:.2f}x bf16"
            f"{' (' + row['way'] + ')' if case['compression'] == 'auto' else ''}",
            flush=True,
        )
    if o.picture:
        picture(rows, o.picture, heading)


def picture(rows: list[dict[str, Any]], path: Path, heading: str) -> None:
    """Step times, measured with their spread and predicted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.5, 0.32 * len(rows) + 1.2))
    for i, row in enumerate(rows):
        ours = not row["label"].startswith(("DDP", "PyTorch", "PowerSGD"))
        spread = [[row["step_s"] - row["step_low_s"]], [row["step_high_s"] - row["step_s"]]]
        axis.barh(i, row["step_s"], color="#3b6ea8" if ours else "#a8a8a8", xerr=spread, height=0.6)
        if row.get("predicted_s", "") != "":
            axis.plot(row["predicted_s"], i, "d", color="#c9a24b", label="predicted" if not i else None)
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("seconds a step; blue: Paceline, grey: PyTorch")
    figure.suptitle(heading, fontsize=8, x=0.01, ha="left")
    axis.legend(frameon=False, fontsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
