"""Fit the constants of NCCL's collectives inside a node, and score them on rows that the fit did not see.

    python benchmarks/fit_collectives.py nccl_aiconfigurator.csv.gz nccl_allreduce.csv [--results FILE.csv]

The first file is NVIDIA's: AIConfigurator, ai-dynamo/aiconfigurator at 095f58a51 (Apache-2.0). Its `message_size` counts
elements of the whole buffer, since int8 takes the time of half as many elements of half precision. Three numbers are fitted
for each generation of NVLink (`start`, `latency`, `reached` in hardware/links.toml), and those that all share
(calibration/collectives.toml). Every generation weighs the same. Sums of int8 do not run in the switch.

The second file has one node of 8 H100 (NVIDIA/dgxc-benchmarking at 841f546, MIT) and four nodes (stas00/ml-engineering at
744d01e, CC BY-SA 4.0). Neither is fitted. The tool of the four nodes starts its clock before PyTorch launches the collective on
an idle device: its author gives 20 to 30 us for that, which the score adds. In training the host runs ahead. The fabric of the
four nodes is not stated: its bandwidth is taken from their rows of 1 GiB and more, which are not scored.

Held out: a system whose generation has another one, a number of devices, and a whole generation, for which the geometric mean
of the others stands in.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.calibration.protocols import Protocol, nccl
from paceline.hardware import Cluster, link
from paceline.hardware.device import Fact, Link
from paceline.prediction.exchange.collective_time import Algorithm, alltoall_seconds, collective_seconds

Array = NDArray[np.float64]
SYSTEMS = {
    "a100_sxm": "A100 SXM 80GB",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "gb200": "GB200",
    "l40s": "L40S",
}
BYTES = {"half": 2, "int8": 1}
FITTED = ("NVLink 3", "NVLink 4", "NVLink 5")
HOST = "PCIe 4.0 x16 via host"
WITHOUT_SWITCH: tuple[Algorithm, ...] = ("ring", "tree")
PRIOR = 0.02
"""Weight of the shipped numbers, which only decides what no row says."""
FABRIC_FROM = 1 << 30
LAUNCH_S = 25e-6
"""Host's part of the times of the four nodes (stas00/ml-engineering at 0cc3de5, ``all_reduce_bench.py``)."""


@dataclass(frozen=True)
class Curve:
    """Rows of one collective on one number of devices: bytes of the whole buffer and measured seconds."""

    system: str
    operation: str
    devices: int
    switch: bool
    sizes: Array
    measured: Array

    @property
    def place(self) -> Cluster:
        return Cluster.named(f"1x{self.devices} {SYSTEMS[self.system]}")

    @property
    def link(self) -> Link:
        """The link inside the node. More than two L40S of that machine pass through the host."""
        return link(HOST) if self.system == "l40s" and self.devices > 2 else self.place.intra_link

    def seconds(self, inside: Link, e: Efficiency) -> Array:
        """Return predicted seconds over a link inside the node."""
        place = self.place.changed(intra_link=inside, network=inside)
        if self.operation == "alltoall":
            return alltoall_seconds(self.sizes, place, e)[0]
        if self.operation != "all_reduce":
            return collective_seconds(self.sizes, place, e, halves=True, in_place=False)[0]
        return collective_seconds(self.sizes, place, e, **({} if self.switch else {"among": WITHOUT_SWITCH}))[0]


def curves(path: Path) -> list[Curve]:
    """Return the rows of the file by system, operation and number of devices."""
    found: dict[tuple[str, str, int, bool], list[tuple[float, float]]] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            key = row["system"], row["op_name"], int(row["num_gpus"]), row["nccl_dtype"] == "half"
            size = float(row["message_size"]) * BYTES[row["nccl_dtype"]]
            found.setdefault(key, []).append((size, 1e-3 * float(row["latency"])))
    return [Curve(*key, *np.array(rows).T) for key, rows in sorted(found.items())]


COMMON: Mapping[str, Callable[[Protocol], float]] = {
    "LL share": lambda p: p.share["nvlink"],
    "LL128 start": lambda p: p.start,
    "LL128 share": lambda p: p.share["nvlink"],
    "Simple start": lambda p: p.start,
    "latency of LL and LL128": lambda p: p.latency["nvlink"],
    "copy": lambda p: p.copy["nvlink"],
    "switch_s": lambda p: p.switch_s,
    "switch_share": lambda p: p.switch_share,
    "LL alltoall_share": lambda p: p.alltoall_share["nvlink"],
    "Simple alltoall_start": lambda p: p.alltoall_start,
    "Simple alltoall_share": lambda p: p.alltoall_share["nvlink"],
}
_OF = (0, 1, 1, 2, 0, 0, 2, 2, 0, 2, 2)


def shipped_common() -> Array:
    """Return the numbers in use that all links share."""
    protocols = nccl()
    return np.array([get(protocols[index]) for get, index in zip(COMMON.values(), _OF, strict=True)])


def with_common(x: Array) -> Efficiency:
    """Return the typical efficiency with other numbers that all links share."""
    ll, ll128, simple = nccl()

    def faster(protocol: Protocol, share: float) -> Protocol:
        latency = {**protocol.latency, "nvlink": x[4]}
        return replace(protocol, latency=latency, tree_latency=latency, share={**protocol.share, "nvlink": share}, copy=copy)

    copy = {"nvlink": x[5]}
    own = (
        replace(faster(ll, x[0]), alltoall_share={"nvlink": x[8]}),
        replace(faster(ll128, x[2]), start=x[1]),
        replace(
            simple,
            start=x[3],
            copy=copy,
            switch_s=x[6],
            switch_share=x[7],
            alltoall_start=x[9],
            alltoall_share={"nvlink": x[10]},
        ),
    )
    return replace(TYPICAL, protocols=own)


def of_link(name: str) -> Array:
    """Return start and latency in seconds, and the factor on the share, of a link."""
    entry = link(name)
    assert entry.start is not None and entry.reached is not None
    return np.array([entry.start.value, entry.latency.value, entry.reached.value])


def with_numbers(entry: Link, x: Array) -> Link:
    """Return the link with other start, latency and factor."""
    start, latency, reached = (Fact(float(value), "fitted", "") for value in x)
    return replace(entry, start=start, latency=latency, reached=reached)


@dataclass(frozen=True)
class Fit:
    """Fitted numbers: those that all links share, and those of each link, by name."""

    common: Array
    links: Mapping[str, Array]

    def errors(self, curve: Curve, own: Array | None = None) -> Array:
        """Return relative errors of a curve. ``own``: numbers of its link."""
        inside = with_numbers(curve.link, self.links[curve.link.name] if own is None else own)
        return curve.seconds(inside, with_common(self.common)) / curve.measured - 1


def shipped() -> Fit:
    """Return the numbers in use."""
    return Fit(shipped_common(), {name: of_link(name) for name in FITTED})


def fit(rows: Sequence[Curve]) -> Fit:
    """Fit all numbers with a robust loss of the logarithm. Every link weighs the same."""
    names = sorted({curve.link.name for curve in rows})
    before = shipped()
    start = np.log(np.concatenate([before.common, *(before.links[name] for name in names)]))
    count = {name: sum(len(c.sizes) for c in rows if c.link.name == name) for name in names}

    def unpacked(x: Array) -> Fit:
        values = np.exp(x)
        of_links = values[len(COMMON) :].reshape(-1, 3)
        return Fit(values[: len(COMMON)], dict(zip(names, of_links, strict=True)))

    def residuals(x: Array) -> Array:
        now = unpacked(x)
        off = [np.log1p(now.errors(c)) * np.sqrt(300 / count[c.link.name]) for c in rows]
        return np.concatenate([*off, PRIOR * (x - start)])

    return unpacked(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=25).x)


def scored(errors: Iterable[Array]) -> tuple[int, float, float, float]:
    """Return rows, median and 90th percentile of the absolute errors, and the median error."""
    off = np.concatenate(list(errors))
    return len(off), float(np.median(np.abs(off))), float(np.quantile(np.abs(off), 0.9)), float(np.median(off))


Score = tuple[str, str, str, str, int, float, float, float]


def table(title: str, rows: Sequence[Curve], errors: Callable[[Curve], Array]) -> list[Score]:
    """Return scores by link, operation and number of devices, then by link."""
    result: list[Score] = []
    for name in sorted({c.link.name for c in rows}):
        own = [c for c in rows if c.link.name == name]
        for operation in sorted({c.operation for c in own}):
            for devices in sorted({c.devices for c in own}):
                cell = [c for c in own if (c.operation, c.devices) == (operation, devices)]
                if cell:
                    result.append((title, name, operation, str(devices), *scored(map(errors, cell))))
        result.append((title, name, "all", "all", *scored(map(errors, own))))
    return result


def held_out(rows: Sequence[Curve]) -> list[Score]:
    """Return scores of systems, numbers of devices and generations that the fit did not see."""
    result: list[Score] = []
    for system in ("h100_sxm", "h200_sxm", "b200_sxm", "gb200"):
        found = fit([c for c in rows if c.system != system])
        result += table(f"without {system}", [c for c in rows if c.system == system], found.errors)
    for devices in (2, 4, 8):
        found = fit([c for c in rows if c.devices != devices])
        result += table(f"without {devices} devices", [c for c in rows if c.devices == devices], found.errors)
    for name in FITTED:
        found = fit([c for c in rows if c.link.name != name])
        mean = np.exp(np.mean([np.log(own) for own in found.links.values()], axis=0))
        result += table(f"without {name}", [c for c in rows if c.link.name == name], partial(found.errors, own=mean))
    return result


def as_used(curve: Curve) -> Array:
    """Return relative errors of a curve with the catalogue's link."""
    return curve.seconds(curve.link, TYPICAL) / curve.measured - 1


def all_reduce(path: Path) -> list[Score]:
    """Return scores of the shipped numbers on the published all-reduce of one node and of four nodes."""
    with path.open() as file:
        rows = [(int(r["nodes"]), float(r["bytes"]), 1e-6 * float(r["time_us"])) for r in csv.DictReader(file)]
    one, four = (np.array([row[1:] for row in rows if row[0] == nodes]).T for nodes in (1, 4))
    near = collective_seconds(one[0], Cluster.named("8 H100"), TYPICAL)[0] / one[1] - 1
    large = four[0] >= FABRIC_FROM
    rate = float(np.median(2 * 31 / 32 * four[0][large] / four[1][large])) / TYPICAL.link_share["infiniband"]
    place = Cluster.named("4x8 H100", network="1x InfiniBand NDR")
    place = place.changed(network=replace(place.network, bandwidth=replace(place.network.bandwidth, value=rate)))
    far = (collective_seconds(four[0], place, TYPICAL)[0] + LAUNCH_S) / four[1] - 1
    return [
        ("other source", "NVLink 4", "all_reduce", "8", *scored([near])),
        ("other source", "4 nodes, below 1 MiB", "all_reduce", "32", *scored([far[four[0] < 1 << 20]])),
        ("other source", "4 nodes, 1 MiB to 1 GiB", "all_reduce", "32", *scored([far[(four[0] >= 1 << 20) & ~large]])),
    ]


def main() -> None:
    """Fit, print the numbers and the scores, and append them to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("collectives", type=Path)
    parser.add_argument("all_reduce", type=Path)
    parser.add_argument("--results", type=Path)
    o = parser.parse_args()
    every = curves(o.collectives)
    rows = [c for c in every if c.link.name in FITTED]
    found, used = fit(rows), shipped()
    for name, value, now in zip(COMMON, found.common, used.common, strict=True):
        print(f"{name:<24} fitted {value:.4g}, in use {now:.4g}")
    for name, own in found.links.items():
        print(f"{name:<10} start, latency, reached: fitted {own.round(9)}, in use {used.links[name].round(9)}")
    scores = table("seen", rows, as_used) + held_out(rows) + all_reduce(o.all_reduce)
    scores += table("one machine", [c for c in every if c.system == "l40s"], as_used)
    for score in scores:
        if score[2] == "all" or score[0] in ("other source", "one machine"):
            print("{:<20} {:<24} {:<14} {:<4} {:5d} rows, median {:6.1%}, p90 {:6.1%}, bias {:+6.1%}".format(*score))
    if o.results:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), commit.stdout.strip(), platform.python_version()
        with o.results.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("held_out", "link", "operation", "devices", "rows", "median", "p90", "bias", "date", "commit", "python")
            )
            writer.writerows((*s[:5], *(round(x, 4) for x in s[5:]), *stamp) for s in scores)


if __name__ == "__main__":
    main()
