"""INCEPTIONN's Figure 12 on an emulated cluster: worker-aggregator and ring, each dense and compressed; the exchange is real.

    python benchmarks/inceptionn_lab.py --gradients FOLDER --out RESULTS/inceptionn_lab.csv --picture RESULTS/inceptionn_lab.svg
    python benchmarks/inceptionn_lab.py --out RESULTS/inceptionn_lab.csv --draw RESULTS/inceptionn_lab.svg

RESULTS is benchmarks/results; --draw measures nothing. Compute is a sleep, in two conditions:

- ``seconds``: of Table II's forward, backward, copy and update. The paper has 10 Gb/s: at 1 Gb/s communication is a larger part
  of the step, so the step is cut by more than there.
- ``shares``: as long as makes communication, of a step of WA on this link, the share that it has in Table II (75.7, 80.2, 80.2
  and 70.9 %). WA is first measured without compute; forward, backward, copy and update then share what is left as in the table.
  This condition can be compared with the paper's Figure 12. The sums on the aggregator are part of the exchange here.

Gradients are those that were recorded in FOLDER (``recorded_gradients.py``), else made up: they have the networks' sizes, and
magnitudes in the shares of Table III. Nothing overlaps, as in the paper. Sums, codecs and sockets are real. The paper's
aggregator answers with whole weights, so WA + C compresses one way; the same with both ways compressed stands beside it.
"""

from __future__ import annotations

import argparse
import textwrap
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import lab_cases
from rows import append, read

from paceline.workload import Workload

PUBLISHED = Path(__file__).parents[1] / "validation" / "inceptionn" / "published.toml"
COLUMNS = (
    "condition",
    "network",
    "gradients",
    "gradient_mb",
    "hosts",
    "link",
    "system",
    "published_normalised",
    "step_s",
    "step_low_s",
    "step_high_s",
    "steps",
    "exchange_s",
    "compute_s",
    "comm_share",
    "codec_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "socket_mb",
    "normalised",
    "comm_cut",
    "step_cut",
    "ratio",
)
CONDITIONS = ("seconds", "shares")
TITLES = {"seconds": "compute takes Table II's seconds", "shares": "communication has Table II's share of WA"}
KEYS = {"WA + C": "wa_c", "INC": "inc", "INC + C": "inc_c"}


def systems(bound: float, ratio: float) -> dict[str, dict[str, Any]]:
    """The paper's four and one more; ``assumed`` is for the prediction alone."""
    coded = {"compression": "inceptionn", "options": {"bound": bound}, "assumed": {"ratio": ratio}}
    one_way = {**coded, "options": {"bound": bound, "compress_pull": False}}
    return {
        "WA": {"compression": "dense", "exchange": "parameter_server"},
        "WA + C": {**one_way, "exchange": "parameter_server"},
        "WA + C both ways": {**coded, "exchange": "parameter_server"},
        "INC": {"compression": "dense", "exchange": "ring"},
        "INC + C": {**coded, "exchange": "ring"},
    }


def scale(seconds: Mapping[str, float], exchange_s: float) -> float:
    """What Table II's compute is multiplied by so that an exchange of ``exchange_s`` has Table II's share of WA's step."""
    share = seconds["communicate"] / seconds["total"]
    return exchange_s * (1 / share - 1) / sum(seconds[name] for name in ("forward", "backward", "copy", "update"))


def paced(seconds: Mapping[str, float], factor: float) -> dict[str, Any]:
    """Seconds of forward, backward with its copy, and update."""
    return {
        "forward_s": factor * seconds["forward"],
        "backward_s": [factor * (seconds["backward"] + seconds["copy"])],
        "update_s": factor * seconds["update"],
    }


def measure(condition: str, net: str, data: dict[str, Any], on: Any, o: argparse.Namespace) -> list[dict[str, Any]]:
    """One network under every system."""
    facts = data["nets"][net]
    seconds = {name: value / 100 for name, value in facts["seconds"].items()}
    table = Workload.named(net)
    gradient, said = lab_cases.gradients(o.gradients, net, lab_cases.TABLE_III, {"shares": list(facts["bits"].values())})
    spec = {
        "shapes": lab_cases.shapes(table),
        **paced(seconds, 1.0),
        "gradient": gradient,
        "warm": 1,
        "steps": lab_cases.enough(o.link, o.steps),
    }
    wanted = systems(data["bound"], facts["ratio"] if o.gradients is None else recorded_ratio(gradient, data["bound"]))
    cases = [{"label": name, **case} for name, case in wanted.items()]
    if condition == "shares":
        (alone,) = lab_cases.run(on, {**spec, **paced(seconds, 0.0)}, cases[:1])
        spec |= paced(seconds, scale(seconds, alone["exchange_s"]))
    compute, update = spec["forward_s"] + spec["backward_s"][0], spec["update_s"]
    rows = []
    for case in lab_cases.run(on, spec, cases):
        guess = lab_cases.predicted(table, o.hosts, o.link, case, compute, update, overlap=False)
        row = {
            "condition": condition,
            "network": net,
            "gradients": said,
            "compute_s": compute + update,
            "comm_share": case["exchange_s"] / case["step_s"],
            "gradient_mb": round(4 * table.num_parameters / 1e6, 1),
            "hosts": o.hosts,
            "link": o.link,
            "system": case["label"],
            "published_normalised": facts["normalised"].get(KEYS.get(case["label"], ""), ""),
            "predicted_s": guess.step_time_s,
            "predicted_low_s": guess.low_s,
            "predicted_high_s": guess.high_s,
            "socket_mb": round(case["socket_bytes"] / 1e6, 2),
            **{k: case[k] for k in ("step_s", "step_low_s", "step_high_s", "steps", "exchange_s", "codec_s")},
        }
        base = rows[0] if rows else row
        row |= {
            "normalised": row["step_s"] / base["step_s"],
            "comm_cut": 1 - row["exchange_s"] / base["exchange_s"],
            "step_cut": 1 - row["step_s"] / base["step_s"],
            "ratio": base["socket_mb"] / row["socket_mb"] if row["socket_mb"] else "",
        }
        rows.append({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()})
        show(rows[-1])
    ring, both = rows[3], rows[4]
    whole = rows[0]["exchange_s"] - both["exchange_s"]
    share = (rows[0]["exchange_s"] - ring["exchange_s"]) / whole
    print(f"  of the communication time saved, {share:.0%} is the ring's and {1 - share:.0%} the codec's\n", flush=True)
    return rows


def recorded_ratio(gradient: Mapping[str, Any], bound: float) -> float:
    """What the codec makes of the recorded gradients: for the prediction."""
    from recorded_gradients import Recording

    return Recording(Path(gradient["recorded"])).ratio("inceptionn", bound)


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    published = f"{row['published_normalised']:.3g}" if row["published_normalised"] != "" else "-"
    spread = f"{row['step_low_s']:.3g}-{row['step_high_s']:.3g}"
    range_ = f"{row['predicted_low_s']:.3g}-{row['predicted_high_s']:.3g}"
    print(
        f"  {row['condition']:8} {row['network']:10} {row['system']:17} step {row['step_s']:.3g} s ({spread}), predicted"
        f" {row['predicted_s']:.3g} ({range_}), of WA {row['normalised']:.2f} (paper {published}), communication"
        f" {row['comm_share']:.1%} of it, cut {row['comm_cut']:.1%}, step {row['step_cut']:.1%}",
        flush=True,
    )


def picture(rows: list[dict[str, Any]], path: Path, heading: str) -> None:
    """Bars per network: measured, predicted and published, normalised to WA; a line of plots for each condition."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    nets = list(dict.fromkeys(r["network"] for r in rows))
    conditions = list(dict.fromkeys(r.get("condition", "seconds") for r in rows))
    size = (3.1 * len(nets), 3.4 * len(conditions))
    figure, axes = pyplot.subplots(len(conditions), len(nets), figsize=size, sharey=True, squeeze=False)
    for axis, (condition, net) in zip(axes.flat, product(conditions, nets), strict=True):
        mine = [r for r in rows if (r.get("condition", "seconds"), r["network"]) == (condition, net)]
        axis.set_visible(bool(mine))
        if not mine:
            continue
        guess = mine[0]["predicted_s"]
        for i, row in enumerate(mine):
            low, high = (abs(row[k] - row["step_s"]) / mine[0]["step_s"] for k in ("step_low_s", "step_high_s"))
            labels = ("measured", "predicted") if not i else (None, None)
            axis.bar(i - 0.2, row["normalised"], 0.4, color="#3b6ea8", yerr=[[low], [high]], label=labels[0])
            axis.bar(i + 0.2, row["predicted_s"] / guess, 0.4, color="#c9a24b", label=labels[1])
            if row["published_normalised"] != "":
                axis.plot(i, row["published_normalised"], "k_", ms=18, label="paper" if row["system"] == "INC" else None)
        axis.set_title(net, loc="left", fontsize=10, fontweight="bold")
        axis.set_title(TITLES[condition], loc="right", fontsize=6)
        names = [r["system"].replace(" both ways", "\nboth ways") for r in mine]
        axis.set_xticks(range(len(mine)), names, rotation=40, fontsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for lane in axes:
        lane[0].set_ylabel("step time over WA's")
    axes[0][0].legend(frameon=False, fontsize=7)
    lines = [textwrap.fill(line, int(14 * size[0])) for line in heading.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=8, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["alexnet", "hdc", "resnet-50", "vgg-16"])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="1Gb/s")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--gradients", type=Path, metavar="FOLDER", help="recorded ones; default: made up")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        drawn = read(o.out)
        given = {"hosts": drawn[0]["hosts"], "link": drawn[0]["link"]}
        picture(drawn, o.draw, lab_cases.HEADING.format(**given, gradients=lab_cases.named(drawn, lab_cases.TABLE_III)))
        return
    o.link = lab_cases.actual(o.link)
    data = tomllib.loads(PUBLISHED.read_text())
    rows = []
    for condition, net in product(o.conditions, o.networks):
        with lab_cases.cluster(o.hosts, o.link) as on:
            measured = measure(condition, net, data, on, o)
        for row in measured:
            append(o.out, COLUMNS, row)
        rows += measured
    heading = lab_cases.HEADING.format(hosts=o.hosts, link=o.link, gradients=lab_cases.named(rows, lab_cases.TABLE_III))
    print(heading, flush=True)
    if o.picture:
        picture(rows, o.picture, heading)


if __name__ == "__main__":
    main()
