"""INCEPTIONN's four networks through network cards on emulated links: measured, predicted and published side by side.

    python benchmarks/nic_networks.py --gradients FOLDER --out RESULTS/nic_networks.csv --picture RESULTS/nic_networks.svg
    python benchmarks/nic_networks.py --out RESULTS/nic_networks.csv --draw RESULTS/nic_networks.svg

RESULTS is benchmarks/results; --draw measures nothing. As in ``inceptionn_lab.py`` compute is a sleep of Table II's, gradients
are recorded or made up, nothing overlaps, and sums, codecs and sockets are real. The codec works once on the hosts and once in
the cards. Two predictions stand beside a card: that of the lab's, a process that takes its codec's time from the same
processors as the hosts; and that of one in hardware. Published figures are for 10 Gb/s.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_cases
from inceptionn_lab import KEYS, PUBLISHED, recorded_ratio, systems
from rows import append, read

from paceline.strategy import Strategy
from paceline.workload import Workload

COLUMNS = (
    *("network", "gradients", "gradient_mb", "hosts", "link", "system", "codec_at", "warm", "steps"),
    *("step_s", "step_low_s", "step_high_s", "exchange_s", "codec_s", "link_mb", "ratio"),
    *("predicted_s", "predicted_low_s", "predicted_high_s", "hardware_s"),
    *("over_wa", "predicted_over_wa", "hardware_over_wa", "published_over_wa"),
    *("comm_cut", "predicted_comm_cut", "hardware_comm_cut", "published_ring_comm_cut", "step_cut"),
)
CARD = "inceptionn,bound=2^-10"
HARDWARE = "inceptionn"
"""The card of the prediction in hardware: the engine of this project."""
PLACES = {"": "", "host": ", host", "nic": ", card"}
COLOURS = {"measured": "#3b6ea8", "predicted": "#c9a24b", "hardware": "#7fb069"}


def cases(data: dict[str, Any], ratio: float, hosts: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The paper's four systems: those that need no cards, and those whose codec is in one."""
    wanted = {name: case for name, case in systems(data["bound"], ratio).items() if name != "WA + C both ways"}
    plain = [{"label": name, **case} for name, case in wanted.items()]
    coded = [{**case, "codec_at": "nic", "card": lab_card(hosts)} for case in plain if case["compression"] != "dense"]
    return [{**case, "codec_at": "host"} if case["compression"] != "dense" else case for case in plain], coded


def lab_card(hosts: int) -> str:
    """The lab's card as ``hardware.nic`` names it: the codec on one host's part of the processors, both ways at once."""
    strategy = Strategy.of(world_size=hosts, global_batch_size=hosts, compression="inceptionn")
    rate = strategy.description.cpu_rate
    share = lab_cases.cores_worth() / hosts
    return f"{HARDWARE}:{8e-9 * share / (1 / rate.encode.value + 1 / rate.decode.value):.4g}Gb/s"


def measure(net: str, link: str, data: dict[str, Any], o: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One network at one link under every system."""
    facts = data["nets"][net]
    seconds = {name: value / 100 for name, value in facts["seconds"].items()}
    table = Workload.named(net)
    backward = seconds["backward"] + seconds["copy"]
    gradient, said = lab_cases.gradients(o.gradients, net, lab_cases.TABLE_III, {"shares": list(facts["bits"].values())})
    ratio = facts["ratio"] if o.gradients is None else recorded_ratio(gradient, data["bound"])
    spec = {
        "shapes": lab_cases.shapes(table),
        "forward_s": seconds["forward"],
        "backward_s": [backward],
        "update_s": seconds["update"],
        "gradient": gradient,
        "warm": o.warm,
        "steps": lab_cases.enough(link, o.steps),
    }
    compute = seconds["forward"] + backward

    def predicted(case: dict[str, Any]) -> Any:
        return lab_cases.predicted(table, o.hosts, link, case, compute, seconds["update"], overlap=False)

    base: dict[str, Any] = {}
    for group, card in zip(cases(data, ratio, o.hosts), ("", CARD), strict=True):
        with lab_cases.cluster(o.hosts, link, card) as on:
            found = lab_cases.run(on, spec, group)
        for case in found:
            place = case.get("codec_at", "")
            guess = predicted(case)
            hardware = predicted({**case, "card": HARDWARE}) if place == "nic" else None
            base = base or {**case, "guess": guess}
            key, whole, unpaced = KEYS.get(case["label"]), base["guess"], compute + seconds["update"]

            def cut(step: Any, whole: Any = whole, unpaced: float = unpaced) -> float:
                return float(1 - (step.step_time_s - unpaced) / (whole.step_time_s - unpaced))

            row = {
                "network": net,
                "gradients": said,
                "gradient_mb": round(4 * table.num_parameters / 1e6, 1),
                "hosts": o.hosts,
                "link": link,
                "system": case["label"],
                "codec_at": place,
                "warm": o.warm,
                "link_mb": case["socket_bytes"] / 1e6,
                "ratio": base["socket_bytes"] / case["socket_bytes"],
                "predicted_s": guess.step_time_s,
                "predicted_low_s": guess.low_s,
                "predicted_high_s": guess.high_s,
                "hardware_s": hardware.step_time_s if hardware else "",
                "over_wa": case["step_s"] / base["step_s"],
                "predicted_over_wa": guess.step_time_s / whole.step_time_s,
                "hardware_over_wa": hardware.step_time_s / whole.step_time_s if hardware else "",
                "published_over_wa": facts["normalised"].get(key, "") if key else "",
                "comm_cut": 1 - case["exchange_s"] / base["exchange_s"],
                "predicted_comm_cut": cut(guess),
                "hardware_comm_cut": cut(hardware) if hardware else "",
                "published_ring_comm_cut": facts["ring_cut"] if case["label"] == "INC" else "",
                "step_cut": 1 - case["step_s"] / base["step_s"],
                **{k: case[k] for k in ("step_s", "step_low_s", "step_high_s", "steps", "exchange_s", "codec_s")},
            }
            yield {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    hardware = f", in hardware {row['hardware_over_wa']:.2f}" if row["hardware_over_wa"] != "" else ""
    published = f", published {row['published_over_wa']:g}" if row["published_over_wa"] != "" else ""
    return (
        f"  {row['network']:10}{row['link']:8} {row['system'] + PLACES[row['codec_at']]:14} step {row['step_s']:.4g} s, of WA"
        f" {row['over_wa']:.2f} (predicted {row['predicted_over_wa']:.2f}{hardware}{published}), communication cut"
        f" {row['comm_cut']:.1%}, {row['link_mb']:.4g} MB on the busiest link"
    )


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """A bar of the step over WA's for each system, a column for each network, a line of plots for each link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    links, nets = (list(dict.fromkeys(r[key] for r in rows)) for key in ("link", "network"))
    size = (3.2 * len(nets), 2.9 * len(links))
    figure, axes = pyplot.subplots(len(links), len(nets), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for lane, link in zip(axes, links, strict=True):
        for axis, net in zip(lane, nets, strict=True):
            own = [r for r in rows if (r["link"], r["network"]) == (link, net)]
            axis.set_visible(bool(own))
            if not own:
                continue
            for place, row in enumerate(own):
                low, high = (abs(row[k] - row["step_s"]) / own[0]["step_s"] for k in ("step_low_s", "step_high_s"))
                axis.bar(place - 0.27, row["over_wa"], 0.27, color=COLOURS["measured"], yerr=[[low], [high]])
                axis.bar(place, row["predicted_over_wa"], 0.27, color=COLOURS["predicted"])
                if row["hardware_over_wa"] != "":
                    axis.bar(place + 0.27, row["hardware_over_wa"], 0.27, color=COLOURS["hardware"])
                if row["published_over_wa"] != "":
                    axis.plot(place, row["published_over_wa"], "k_", ms=20)
            axis.set_title(f"{net}, {link}", loc="left", fontsize=9, fontweight="bold")
            names = [r["system"] + PLACES[r["codec_at"]] for r in own]
            axis.set_xticks(range(len(own)), names, rotation=40, fontsize=7, ha="right")
            axis.spines[["top", "right"]].set_visible(False)
        lane[0].set_ylabel("step over WA's", fontsize=8)
    marks = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    names = ["measured (median, range)", "predicted for the lab", "predicted, card in hardware", "published, 10 Gb/s"]
    figure.legend([*marks, Line2D([], [], color="k")], names, ncols=4, frameon=False, fontsize=8, loc="outside lower left")
    heading = f"{rows[0]['hosts']} hosts behind user-space cards, all on one machine; compute is a sleep"
    figure.suptitle(f"{heading}, gradients are {lab_cases.named(rows, lab_cases.TABLE_III)}", fontsize=8, x=0.01, ha="left")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["alexnet", "hdc", "resnet-50", "vgg-16"])
    parser.add_argument("--links", nargs="+", default=["1Gb/s"])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--warm", type=int, default=1, help="steps before the timed ones")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gradients", type=Path, metavar="FOLDER", help="recorded ones; default: made up")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    data = tomllib.loads(PUBLISHED.read_text())
    rows = []
    for net in o.networks:
        for link in o.links:
            for row in measure(net, link, data, o):
                append(o.out, COLUMNS, row)
                print(line(row), flush=True)
                rows.append(row)
    if o.picture:
        picture(rows, o.picture)


if __name__ == "__main__":
    main()
