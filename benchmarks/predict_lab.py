"""Step time in the lab, predicted from one device: dense, bf16, TernGrad and INCEPTIONN, 2, 4 and 8 hosts, three links.

    python benchmarks/predict_lab.py --out RESULTS/predict_lab.csv

RESULTS is benchmarks/results. What the predictions know: the seconds that compute is paced at, the link's nominal rate, the
bytes that a strategy sends, how many hosts share this machine's cores, and what one process here takes for a byte of
message, for an element of gradient and for its exchange without links (``machine.py``). No row of the lab is fitted.
``--predict FILE`` measures no steps and predicts the rows of an earlier ``speedup_lab.py`` anew.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lab_cases
from machine import Machine, exchange_s, measure
from rows import append
from speedup_lab import COMPUTE_S

from paceline.units import parse_bandwidth

COLUMNS = (
    "network", "gradient_mb", "hosts", "link", "method", "step_s", "step_low_s", "step_high_s", "steps", "exchange_s",
    "codec_s", "compute_s", "predicted_s", "error", "bound", "carry_ns", "cores_worth",
)  # fmt: skip
SHARES = (0.75, 0.12, 0.12, 0.01)
"""Of made-up gradients that INCEPTIONN sends in 0, 8, 16 and 32 bits behind a tag of two: between Table III's networks."""
RATIO = 32 / (2 + sum(share * bits for share, bits in zip(SHARES, (0, 8, 16, 32), strict=True)))
CASES: tuple[dict[str, Any], ...] = (
    {"method": "dense", "compression": "torch:dense"},
    {"method": "bf16", "compression": "torch:bf16"},
    {"method": "terngrad", "compression": "terngrad"},
    {"method": "inceptionn", "compression": "inceptionn", "exchange": "ring", "assumed": {"ratio": RATIO}},
)


def predicted(net: str, hosts: int, link: str, case: Mapping[str, Any], machine: Machine) -> tuple[float, str]:
    """Seconds of the step, and whether links or this machine's cores set them.

    The schedule of ``predict`` with links that the cores can carry and with the codec's seconds as they are here; but the
    work of all hosts behind the forward pass takes at least what the cores need for it.
    """
    table, compute = lab_cases.workload(net), COMPUTE_S[net]
    kept = machine.keep(hosts, 4 * table.num_parameters)
    shared = machine.bandwidth(hosts)

    def step(codec: float) -> Any:
        return lab_cases.predicted(
            table, hosts, link, case, compute, kept, overlap=True, at_most=shared, codec_cores=machine.cores / hosts / codec
        )

    guess = step(1.0)
    if guess.codec_s:
        here = table.num_parameters * exchange_s(case["compression"], case.get("exchange", ""), hosts) * hosts / machine.cores
        guess = step(here / guess.codec_s)
    busy = compute / 3 + machine.work(case, hosts, table.num_parameters, guess.wire_bytes_per_device)
    bound = "cores" if busy > guess.step_time_s or parse_bandwidth(link) > shared else "link"
    return max(guess.step_time_s, busy), bound


def measured(net: str, hosts: int, link: str, steps: int, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cases on an emulated cluster."""
    spec = {**lab_cases.overlapped(lab_cases.workload(net), COMPUTE_S[net], 1, steps), "gradient": {"shares": SHARES}}
    with lab_cases.cluster(hosts, link) as on:
        return lab_cases.run(on, spec, cases)


def row(net: str, hosts: int, link: str, case: Mapping[str, Any], found: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """A row of the results."""
    seconds, bound = predicted(net, hosts, link, case, machine)
    values = {
        "network": net, "gradient_mb": round(4e-6 * lab_cases.workload(net).num_parameters, 1), "hosts": hosts, "link": link,
        "method": case["method"], "compute_s": COMPUTE_S[net], "predicted_s": seconds,
        "error": seconds / found["step_s"] - 1,
        "bound": bound, "carry_ns": machine.carry_s * 1e9, "cores_worth": machine.cores,
        **{k: found[k] for k in ("step_s", "step_low_s", "step_high_s", "steps", "exchange_s", "codec_s")},
    }  # fmt: skip
    print(
        f"  {net:10} {hosts} hosts {link:8} {case['method']:10} step {found['step_s']:.3g} s, predicted {seconds:.3g}"
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
    errors = [abs(r["error"]) for r in rows]
    lines.append(f"all        MAPE {statistics.fmean(errors):.1%}, median {statistics.median(errors):.1%}")
    return "\n".join(lines)


def earlier(path: Path, machine: Machine) -> list[dict[str, Any]]:
    """The rows of a ``speedup_lab.py`` predicted anew."""
    known = {case["compression"].removeprefix("torch:"): case for case in CASES}
    with path.open() as file:
        old = [r for r in csv.DictReader(file) if r["compression"] in known and r["link"] != "loopback"]
    numbers = ("step_s", "step_low_s", "step_high_s", "exchange_s", "codec_s", "steps")
    return [
        row(r["network"], int(r["hosts"]), r["link"], known[r["compression"]], {k: float(r[k]) for k in numbers}, machine)
        for r in old
    ]


def main() -> None:
    """Measure, predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["googlenet"], choices=sorted(COMPUTE_S))
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--links", nargs="+", default=["100Mb/s", "1Gb/s", "10Gb/s"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--predict", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    machine = measure()
    print(f"one process of this machine: {machine}; all hosts share its cores", flush=True)
    if o.predict:
        print(summary(earlier(o.predict, machine)))
        return
    rows: list[dict[str, Any]] = []
    for net in o.networks:
        for link in map(lab_cases.actual, o.links):
            for hosts in o.hosts:
                found = measured(net, hosts, link, o.steps, CASES)
                for case, one in zip(CASES, found, strict=True):
                    rows.append(row(net, hosts, link, case, one, machine))
                    if o.out:
                        append(o.out, COLUMNS, rows[-1])
    print(summary(rows))


if __name__ == "__main__":
    main()
