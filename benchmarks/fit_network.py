"""Fit the share of a link that an engine's collectives get, by size of the message; print the error where nothing was fitted.

    python benchmarks/fit_network.py nccl_allreduce.csv

The file has the columns nodes, bytes, time_us. Only the rows of one node of 8 H100 are fitted: three shares of bandwidth, and
the time that the switch needs to begin (``calibration/protocols.py``). Other latencies are NVIDIA's. The rows of four nodes are
held out. Their fabric is not stated, so its bandwidth is taken from the rows of 1 GiB and more, and those are not scored. Data:
NVIDIA/dgxc-benchmarking @841f546 (MIT) and stas00/ml-engineering @744d01e (CC BY-SA 4.0).
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from paceline.calibration.constants import TYPICAL, Efficiency
from paceline.calibration.protocols import LL, LL128, SIMPLE, Protocol
from paceline.hardware import cluster
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.collective_time import collective_seconds

Array = NDArray[np.float64]
BANDS = (0, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 40)
FABRIC_FROM = 1 << 30


def read(path: Path, nodes: int) -> tuple[Array, Array]:
    """Bytes and seconds of the rows with so many nodes."""
    with path.open() as file:
        rows = [(float(r["bytes"]), float(r["time_us"]) * 1e-6) for r in csv.DictReader(file) if int(r["nodes"]) == nodes]
    table = np.array(rows)
    return table[:, 0], table[:, 1]


def with_shares(shares: Array) -> Efficiency:
    """The typical efficiency with these shares of NVLink for LL and LL128, and the switch's share and microseconds."""

    def on_nvlink(protocol: Protocol, share: float) -> Protocol:
        return replace(protocol, share=MappingProxyType({**protocol.share, "nvlink": share}))

    simple = replace(SIMPLE, switch_share=shares[2], switch_s=1e-6 * shares[3])
    return replace(TYPICAL, protocols=(on_nvlink(LL, shares[0]), on_nvlink(LL128, shares[1]), simple))


def errors(place: Cluster, efficiency: Efficiency, sizes: Array, measured: Array) -> Array:
    """Relative errors of the prediction."""
    return collective_seconds(sizes, place, efficiency)[0] / measured - 1


def fit(sizes: Array, measured: Array) -> Array:
    """The four numbers with the least squared error of the logarithm over the rows of one node."""
    place = cluster("H100 SXM", 8, 1)

    def loss(shares: Array) -> float:
        if (shares <= 0).any():
            return 1e9
        return float(np.mean(np.log1p(errors(place, with_shares(shares), sizes, measured)) ** 2))

    return minimize(loss, shipped(), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-9}).x


def shipped() -> Array:
    """The numbers in use."""
    return np.array([LL.share["nvlink"], LL128.share["nvlink"], SIMPLE.switch_share, 1e6 * SIMPLE.switch_s])


def four_nodes(sizes: Array, measured: Array) -> Cluster:
    """Four nodes of 8 with the network that the largest messages show: a ring sends 2 (N-1)/N of them through each node."""
    large = sizes >= FABRIC_FROM
    rate = float(np.median(2 * 31 / 32 * sizes[large] / measured[large])) / TYPICAL.link_share["infiniband"]
    place = cluster("H100 SXM", 8, 4, "InfiniBand NDR")
    return place.changed(network=replace(place.network, bandwidth=replace(place.network.bandwidth, value=rate)))


def show(title: str, sizes: Array, errors: Array) -> None:
    """Mean and worst absolute error in bands of size."""
    print(f"{title}: {np.mean(np.abs(errors)):.1%} over {len(errors)} rows, median {np.median(np.abs(errors)):.1%}")
    for low, high in pairwise(BANDS):
        band = errors[(sizes >= low) & (sizes < high)]
        if len(band):
            mean, bias = np.mean(np.abs(band)), np.mean(band)
            print(f"  {low:>12,} B to {high:>17,} B: mean {mean:6.1%}, bias {bias:+6.1%}, {len(band)} rows")


def main() -> None:
    """Fit, and print shares and errors."""
    path = Path(sys.argv[1])
    one_node, four_rows = read(path, 1), read(path, 4)
    shares = fit(*one_node)
    for name, values in (("fitted", shares), ("shipped", shipped())):
        print("{}: LL {:.3f} and LL128 {:.3f} of NVLink, switch {:.3f} behind {:.1f} us".format(name, *values))
    show("one node, fitted", one_node[0], errors(cluster("H100 SXM", 8, 1), with_shares(shares), *one_node))
    place = four_nodes(*four_rows)
    kept = four_rows[0] < FABRIC_FROM
    show("four nodes, held out", four_rows[0][kept], errors(place, with_shares(shares), four_rows[0][kept], four_rows[1][kept]))


if __name__ == "__main__":
    main()
