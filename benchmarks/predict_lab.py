"""Step time in the lab, predicted from one device and a model of this machine: four compressions, three links.

    python benchmarks/predict_lab.py --gradients FOLDER --out RESULTS/predict_lab.csv --picture RESULTS/predict_lab.svg
    python benchmarks/predict_lab.py --out RESULTS/predict_lab.csv --draw RESULTS/predict_lab.svg

RESULTS is benchmarks/results; --draw measures nothing. Compute is a sleep; gradients are those that were recorded in FOLDER
(``recorded_gradients.py``), else made up, with magnitudes in shares between those of Table III's networks; the exchange is
real. The predictions know a step on one device, the link's nominal rate, the bytes that a strategy sends, how many hosts share
this machine's processors, and what one processor takes for a byte of message and for an element's exchange without links
(``machine.py``). No row of the lab is fitted. ``paceline predict`` has no such model of a machine; what it says of the same
steps, with a core for each host, stands beside it (``plain_s``).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lab_cases
from inceptionn_lab import recorded_ratio
from machine import Machine, alone_s, exchange_s, measure
from rows import append, read
from speedup_lab import COMPUTE_S

from paceline.prediction import Prediction
from paceline.units import parse_bandwidth
from paceline.workload import Workload

COLUMNS = (
    "network",
    "gradients",
    "gradient_mb",
    "hosts",
    "link",
    "method",
    "step_s",
    "step_low_s",
    "step_high_s",
    "steps",
    "exchange_s",
    "codec_s",
    "compute_s",
    "predicted_s",
    "error",
    "plain_s",
    "plain_error",
    "bound",
    "carry_ns",
    "alone_s",
)
SHARES = (0.75, 0.12, 0.12, 0.01)
"""Of made-up gradients that INCEPTIONN sends in 0, 8, 16 and 32 bits behind a tag of two: between Table III's networks."""
RATIO = 32 / (2 + sum(share * bits for share, bits in zip(SHARES, (0, 8, 16, 32), strict=True)))
CASES: tuple[dict[str, Any], ...] = (
    {"method": "dense", "compression": "torch:dense"},
    {"method": "bf16", "compression": "torch:bf16"},
    {"method": "terngrad", "compression": "terngrad"},
    {"method": "inceptionn", "compression": "inceptionn", "exchange": "ring"},
)
COLOURS = ("#3b6ea8", "#3a8f6d", "#b5523b", "#8a6fb0")


def predicted(net: str, hosts: int, link: str, case: Mapping[str, Any], machine: Machine) -> tuple[float, str]:
    """Seconds of the step, and whether links or this machine's processors set them.

    The schedule of ``predict``, with links that the processors can carry and with the codec's seconds as they are here; but
    what follows the first gradients takes at least what the processors need for the exchanges of all hosts.
    """
    table, compute = Workload.named(net), COMPUTE_S[net]

    def step(codec: float) -> Prediction:
        return lab_cases.predicted(
            table,
            hosts,
            link,
            case,
            alone_s(net),
            0.0,
            overlap=True,
            at_most=machine.bandwidth(hosts),
            codec_cores=machine.share(hosts) / codec,
        )

    guess = step(1.0)
    if guess.codec_s:
        here = table.num_parameters * exchange_s(case["compression"], case.get("exchange", ""), hosts) / machine.share(hosts)
        guess = step(here / guess.codec_s)
    first = min((event.start_s for event in guess.timeline if event.lane in ("network", "codec")), default=compute)
    busy = first + machine.work(case, hosts, table.num_parameters, guess.wire_bytes_per_device)
    bound = "processors" if busy > guess.step_time_s or parse_bandwidth(link) > machine.bandwidth(hosts) else "link"
    return max(guess.step_time_s, busy), bound


def plain(net: str, hosts: int, link: str, case: Mapping[str, Any], alone: float) -> float:
    """Seconds that ``paceline predict`` says, from the step of one device alone: nominal links, a processor's core a host."""
    table = Workload.named(net)
    return lab_cases.predicted(table, hosts, link, case, alone, 0.0, overlap=True, codec_cores=1.0).step_time_s


def measured(
    net: str, hosts: int, link: str, steps: int, cases: Sequence[Mapping[str, Any]], recorded: Path | None
) -> list[dict[str, Any]]:
    """The cases on an emulated cluster; each says what its gradients are, and INCEPTIONN's what the codec makes of them."""
    gradient, said = lab_cases.gradients(recorded, net, lab_cases.TABLE_III, {"shares": SHARES})
    steps = lab_cases.enough(link, steps)
    spec = {**lab_cases.overlapped(Workload.named(net), COMPUTE_S[net], 1, steps), "gradient": gradient}
    ratio = recorded_ratio(gradient, 2.0**-10) if recorded else RATIO
    told = [{**case, "assumed": {"ratio": ratio}} if case["compression"] == "inceptionn" else dict(case) for case in cases]
    with lab_cases.cluster(hosts, link) as on:
        return [{**case, "gradients": said} for case in lab_cases.run(on, spec, told)]


def row(net: str, hosts: int, link: str, measured: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """A row of the results."""
    seconds, bound = predicted(net, hosts, link, measured, machine)
    own = plain(net, hosts, link, measured, alone_s(net))
    values = {
        "network": net,
        "gradients": measured["gradients"],
        "gradient_mb": round(4e-6 * Workload.named(net).num_parameters, 1),
        "hosts": hosts,
        "link": link,
        "method": measured["method"],
        "compute_s": COMPUTE_S[net],
        "predicted_s": seconds,
        "error": seconds / measured["step_s"] - 1,
        "plain_s": own,
        "plain_error": own / measured["step_s"] - 1,
        "bound": bound,
        "carry_ns": machine.carry_s * 1e9,
        "alone_s": alone_s(net),
        **{k: measured[k] for k in ("step_s", "step_low_s", "step_high_s", "steps", "exchange_s", "codec_s")},
    }
    print(
        f"  {net:10} {hosts} hosts {link:8} {measured['method']:10} step {measured['step_s']:.3g} s, predicted {seconds:.3g}"
        f" ({values['error']:+.1%}), {bound}",
        flush=True,
    )
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean absolute error by method and link."""
    lines = []
    for key in ("method", "link", "hosts"):
        for name in dict.fromkeys(r[key] for r in rows):
            errors = [abs(r["error"]) for r in rows if r[key] == name]
            lines.append(f"{name!s:10} MAPE {statistics.fmean(errors):.1%}, worst {max(errors):.1%} of {len(errors)}")
    errors = [abs(r["plain_error"]) for r in rows]
    lines.append(f"all        MAPE {statistics.fmean(errors):.1%} by paceline predict, without the model of this machine")
    errors = [abs(r["error"]) for r in rows]
    lines.append(f"all        MAPE {statistics.fmean(errors):.1%}, median {statistics.median(errors):.1%}")
    return "\n".join(lines)


def picture(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Measured and predicted seconds against hosts, a panel for each link."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    links = list(dict.fromkeys(r["link"] for r in rows))
    figure, axes = pyplot.subplots(1, len(links), figsize=(3.4 * len(links), 3.2), squeeze=False)
    for link, axis in zip(links, axes[0], strict=True):
        for number, (colour, name) in enumerate(zip(COLOURS, dict.fromkeys(r["method"] for r in rows), strict=False)):
            mine = [r for r in rows if r["link"] == link and r["method"] == name]
            at = [r["hosts"] * 1.06 ** (number - 1.5) for r in mine]
            spread = [[r["step_s"] - r["step_low_s"] for r in mine], [r["step_high_s"] - r["step_s"] for r in mine]]
            axis.errorbar(at, [r["step_s"] for r in mine], spread, fmt="o", color=colour, ms=4, lw=1, label=name)
            axis.plot(at, [r["predicted_s"] for r in mine], "_", color=colour, ms=12, mew=2)
        axis.set_title(link, loc="left", fontsize=10, fontweight="bold")
        axis.set(xscale="log", xlabel="hosts", ylim=(0, None))
        hosts = sorted({r["hosts"] for r in rows})
        axis.set_xticks(hosts, [str(n) for n in hosts])
        axis.minorticks_off()
    axes[0][0].set_ylabel("seconds a step")
    heading = lab_cases.EMULATED.format(gradients=lab_cases.named(rows, lab_cases.TABLE_III))
    heading += "\npredicted with this benchmark's model of the machine that all hosts share; paceline predict does not have it"
    figure.suptitle(heading, fontsize=8, x=0.01, ha="left")
    axes[0][-1].legend(loc="lower left", fontsize=8, frameon=False, title="point measured, bar predicted", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["googlenet"], choices=sorted(COMPUTE_S))
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--links", nargs="+", default=["100Mb/s", "1Gb/s", "10Gb/s"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gradients", type=Path, metavar="FOLDER", help="recorded ones; default: made up")
    parser.add_argument("--methods", nargs="+", default=[case["method"] for case in CASES])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    cases = [case for case in CASES if case["method"] in o.methods]
    machine = measure()
    print(f"one process of this machine: {machine}; all hosts share its processors", flush=True)
    rows: list[dict[str, Any]] = []
    for net in o.networks:
        for link in map(lab_cases.actual, o.links):
            for hosts in o.hosts:
                for outcome in measured(net, hosts, link, o.steps, cases, o.gradients):
                    rows.append(row(net, hosts, link, outcome, machine))
                    if o.out:
                        append(o.out, COLUMNS, rows[-1])
    print(summary(rows))
    if o.picture:
        picture(rows, o.picture)


if __name__ == "__main__":
    main()
