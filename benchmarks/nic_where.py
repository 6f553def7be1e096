"""Where a codec in the network card pays, predicted: over the speeds of link and engine, the codec's place and the network.

    python benchmarks/nic_where.py --out RESULTS/nic_where.csv --picture RESULTS/nic_where.svg
    python benchmarks/nic_where.py --published RESULTS/nic_published.csv
    python benchmarks/nic_where.py --switch RESULTS/switch_where.csv

RESULTS is benchmarks/results. Nothing is measured. Four nodes of one GPU exchange around a ring over TCP, beside the backward
pass. Ratios are those of INCEPTIONN's Table III; that of the transformer is not known, and the mean of the four is taken. For
the table beside the published figures nothing overlaps, the codec is in a card of the paper's goal, and compute is Table II's.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from rows import append

from paceline.calibration.constants import TYPICAL
from paceline.hardware import Cluster, aggregation, cluster, nic
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

PUBLISHED = Path(__file__).parents[1] / "validation" / "inceptionn"
LINKS = tuple(float(f"{gb:.3g}") for gb in np.geomspace(0.01, 400, 24))
"""Gb/s in one direction."""
ENGINES = (1, 2.1, 5, 10, 23.6, 50, 100, 200, 400)
"""Gb/s of fp32."""
NODES = 4
BATCH = {"alexnet": 64, "hdc": 25, "resnet-50": 16, "vgg-16": 64, "bert-large": 4}
"""Samples of a device: the paper's, and one that fits for the transformer."""
PLACES: dict[str, dict[str, Any]] = {
    "none": {"compression": "dense"},
    "host, 1 core": {"codec_at": "host", "cores": 1},
    "host, 8 cores": {"codec_at": "host", "cores": 8},
    "gpu": {"codec_at": "gpu"},
    "card, our engine": {"codec_at": "nic", "nic": "inceptionn"},
    "card, 2.1 Gb/s": {"codec_at": "nic", "nic": "vc709"},
    "card, 100 Gb/s": {"codec_at": "nic", "nic": "inceptionn:100Gb/s"},
}
RIVALS = {
    "none": ("none",),
    "none or host, 1 core": ("none", "host, 1 core"),
    "none or host, 8 cores": ("none", "host, 8 cores"),
    "none or gpu": ("none", "gpu"),
}
"""Without a card: the faster of these."""
WORTH = 0.01
"""A card pays where steps are at least this much shorter."""
COLUMNS = ("network", "device", "nodes", "link_gbps", "place", "step_s", "exchange_s", "network_s", "codec_s", "wire_mb")
RANGES = ("network", "device", "nodes", "card", "against", "pays_gbps", "most_gain", "most_at_gbps")
TABLE = (
    *("network", "system", "published_step_s", "published_over_wa", "predicted_step_s", "predicted_over_wa"),
    *("predicted_network_s", "predicted_comm_cut", "predicted_step_cut", "published_step_cut", "published_comm_cut"),
)
SWITCH = ("network", "compression", "exchange", "aggregation", "nodes", "link_gbps", "step_s", "network_s", "wire_mb")


@cache
def facts() -> dict[str, Any]:
    """The published figures."""
    return tomllib.loads((PUBLISHED / "published.toml").read_text(encoding="utf-8"))


@cache
def compared() -> ModuleType:
    """The comparison with published steps, whose compute and systems are taken."""
    spec = importlib.util.spec_from_file_location("inceptionn_compare", PUBLISHED / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def where(device: str, gbps: float, nodes: int = NODES) -> Cluster:
    """Nodes of one device, on links of that speed over TCP."""
    return cluster(device, 1, nodes, f"{gbps * 1000:g}Mb/s TCP")


def step(net: str, device: str, gbps: float, place: dict[str, Any]) -> Prediction:
    """One network with its codec at one place, around a ring."""
    there = where(device, gbps)
    if "nic" in place:
        there = there.changed(nic=nic(place["nic"]))
    ratio = facts()["nets"].get(net, {}).get("ratio", 0)
    choices: dict[str, Any] = {"compression": "inceptionn", "options": {"bound": 2.0**-10, "ratio": ratio}}
    if place.get("compression") == "dense":
        choices = {"compression": "dense"}
    strategy = Strategy.of(
        world_size=NODES,
        global_batch_size=NODES * BATCH[net],
        exchange="ring",
        codec_at=place.get("codec_at", ""),
        **choices,
    )
    cores = place.get("cores")
    constants = replace(TYPICAL, codec_cores=cores) if cores else None
    return Predictor(constants=constants).step(workload(net), there, strategy)


@cache
def workload(net: str) -> Workload:
    """One for all predictions of it."""
    return Workload.named(net)


def sweep(nets: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """Every network, link and place."""
    for net in nets:
        for gbps in LINKS:
            for name, place in PLACES.items():
                p = step(net, device, gbps, place)
                yield {
                    "network": net,
                    "device": device,
                    "nodes": NODES,
                    "link_gbps": gbps,
                    "place": name,
                    "step_s": p.step_time_s,
                    "exchange_s": p.exposed_comm_s,
                    "network_s": p.comm_s,
                    "codec_s": p.codec_s,
                    "wire_mb": p.wire_bytes_per_device / 1e6,
                }


def ranges(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Between which links of the sweep each card makes steps shorter than what there is without it."""
    steps = {(r["network"], r["link_gbps"], r["place"]): r["step_s"] for r in rows}
    cards = [name for name in PLACES if name.startswith("card")]
    for net in dict.fromkeys(r["network"] for r in rows):
        for card in cards:
            for other, rivals in RIVALS.items():
                gains = {gbps: min(steps[net, gbps, r] for r in rivals) / steps[net, gbps, card] for gbps in LINKS}
                best = max(gains, key=lambda gbps: gains[gbps])
                yield {
                    "network": net,
                    "device": rows[0]["device"],
                    "nodes": NODES,
                    "card": card,
                    "against": other,
                    "pays_gbps": "; ".join(f"{a:.3g} to {b:.3g}" for a, b in spans(net, rows[0]["device"], card, other, gains)),
                    "most_gain": gains[best],
                    "most_at_gbps": best,
                }


def spans(net: str, device: str, card: str, other: str, gains: dict[float, float]) -> Iterator[tuple[float, float]]:
    """Links between which the card pays; an end inside the sweep is found by bisection to 1 %."""

    def pays(gbps: float) -> bool:
        *without, own = (step(net, device, gbps, PLACES[name]).step_time_s for name in (*RIVALS[other], card))
        return min(without) >= (1 + WORTH) * own

    def end(paying: float, not_paying: float) -> float:
        while abs(np.log(paying / not_paying)) > 0.01:
            middle = float(np.sqrt(paying * not_paying))
            paying, not_paying = (middle, not_paying) if pays(middle) else (paying, middle)
        return paying

    links, begun = list(gains), 0.0
    for before, now in zip([0.0, *links], [*links, 0.0], strict=True):
        paid, paying = (bool(at) and gains[at] >= 1 + WORTH for at in (before, now))
        if paying and not paid:
            begun = end(now, before) if before else now
        elif paid and not paying:
            yield begun, end(before, now) if now else before


def published(card: str) -> Iterator[dict[str, Any]]:
    """The paper's four systems with the codec in a card: its steps, and those of the prediction."""
    compare, data = compared(), facts()
    for net, own in data["nets"].items():
        factor, base, whole = compare.compute_factor(data, net), None, own["seconds"]["total"] / 100
        for system, how in compare.SYSTEMS.items():
            p = _system(net, system, how, factor, card)
            base = base or p
            scale = own["normalised"][compare.KEYS[system]] if system in compare.KEYS else 1.0
            yield {
                "network": net,
                "system": system,
                "published_step_s": scale * whole,
                "published_over_wa": scale,
                "predicted_step_s": p.step_time_s,
                "predicted_over_wa": p.step_time_s / base.step_time_s,
                "predicted_network_s": p.comm_s,
                "predicted_comm_cut": 1 - p.comm_s / base.comm_s,
                "predicted_step_cut": 1 - p.step_time_s / base.step_time_s,
                "published_step_cut": 1 - scale,
                "published_comm_cut": own["ring_cut"] if system == "INC" else "",
            }


def _system(net: str, system: str, how: dict[str, Any], factor: float, card: str) -> Prediction:
    compare, data = compared(), facts()
    coded = how["compression"] == "inceptionn"
    nodes = compare.nodes_of(data, system)
    own = data["nets"][net]
    strategy = Strategy.of(
        world_size=nodes,
        global_batch_size=nodes * own["batch"],
        options={"bound": data["bound"], "ratio": own["ratio"]} if coded else {},
        codec_at="nic" if coded else "",
        **how,
    )
    there = cluster(data["device"], 1, nodes, data["network"])
    model = Predictor(overlap=False, constants=TYPICAL.timed(factor))
    return model.step(workload(net), there.changed(nic=nic(card)) if coded else there, strategy)


def switched(nets: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """Sums in the switch against the ring: dense and ternary, by nodes and links."""
    ways = (
        ("dense", "ring", ""),
        ("dense", "switch", "SwitchML"),
        ("dense", "switch", "ATP"),
        ("dense", "switch", "Paceline switch"),
        ("terngrad", "ring", ""),
        ("terngrad", "switch", "Paceline switch"),
    )
    for net in nets:
        for nodes in (4, 8, 16, 64):
            for gbps in (0.1, 1.0, 10.0, 100.0):
                for compression, exchange, adds in ways:
                    there = where(device, gbps, nodes)
                    there = there.changed(aggregation=aggregation(adds)) if adds else there
                    batch = nodes * BATCH[net]
                    s = Strategy.of(world_size=nodes, global_batch_size=batch, compression=compression, exchange=exchange)
                    p = Predictor().step(workload(net), there, s)
                    yield {
                        "network": net,
                        "compression": compression,
                        "exchange": exchange,
                        "aggregation": adds,
                        "nodes": nodes,
                        "link_gbps": gbps,
                        "step_s": p.step_time_s,
                        "network_s": p.comm_s,
                        "wire_mb": p.wire_bytes_per_device / 1e6,
                    }


def engine_gains(net: str, device: str) -> np.ndarray[Any, Any]:
    """Step without compression over that with a card, (engines, links)."""
    dense = [step(net, device, gbps, PLACES["none"]).step_time_s for gbps in LINKS]
    made = [[step(net, device, g, {"codec_at": "nic", "nic": f"inceptionn:{e}Gb/s"}) for g in LINKS] for e in ENGINES]
    return np.array([[d / p.step_time_s for d, p in zip(dense, row, strict=True)] for row in made])


def picture(rows: Sequence[dict[str, Any]], device: str, path: Path) -> None:
    """Above, the step against that without compression; below, what a card gains over the engine's and the link's speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    nets = list(dict.fromkeys(r["network"] for r in rows))
    figure, axes = pyplot.subplots(2, len(nets), figsize=(3.0 * len(nets), 5.6), squeeze=False, layout="constrained")
    steps = {(r["network"], r["link_gbps"], r["place"]): r["step_s"] for r in rows}
    mesh = None
    for column, net in enumerate(nets):
        top, below = axes[0][column], axes[1][column]
        for name in (place for place in PLACES if place != "none"):
            gains = [steps[net, gbps, "none"] / steps[net, gbps, name] for gbps in LINKS]
            top.plot(LINKS, gains, label=name, lw=1.4, ls="-" if name.startswith("card") else "--")
        top.axhline(1, color="k", lw=0.6)
        top.set_title(net, loc="left", fontsize=9, fontweight="bold")
        mesh = below.pcolormesh(
            LINKS, ENGINES, engine_gains(net, device), cmap="RdBu", vmin=0, vmax=2, shading="nearest", rasterized=True
        )
        below.set_yscale("log")
        below.set_xlabel("link, Gb/s", fontsize=8)
        for axis in (top, below):
            axis.set_xscale("log")
            axis.tick_params(labelsize=7)
    axes[0][0].set_ylabel("times as fast as without compression", fontsize=8)
    axes[1][0].set_ylabel("engine of the card, Gb/s of fp32", fontsize=8)
    axes[0][0].legend(frameon=False, fontsize=6)
    if mesh is not None:
        figure.colorbar(mesh, ax=axes[1].tolist(), extend="max", label="times as fast", pad=0.01)
    heading = f"predicted: {NODES} nodes of one {device}, ring over TCP, inceptionn at 2^-10, exchange beside the backward pass"
    figure.suptitle(heading, fontsize=8, x=0.01, ha="left")
    figure.savefig(path, metadata={"Date": None})


def write(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """The rows anew, each with date, commit and environment."""
    path.unlink(missing_ok=True)
    for row in rows:
        append(path, columns, {key: float(f"{v:.5g}") if isinstance(v, float) else v for key, v in row.items()})


def main() -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(BATCH), choices=list(BATCH))
    parser.add_argument("--device", default="GTX 1080 Ti")
    parser.add_argument("--card", default="INCEPTIONN goal", help="the card of --published")
    parser.add_argument("--out", type=Path, help="the sweep; its ranges go beside it, as NAME_pays.csv")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--published", type=Path, help="the paper's four systems beside their prediction")
    parser.add_argument("--switch", type=Path, help="sums in the switch against the ring")
    o = parser.parse_args()
    if o.out:
        rows = list(sweep(o.networks, o.device))
        pays = list(ranges(rows))
        write(o.out, COLUMNS, rows)
        write(o.out.with_name(f"{o.out.stem}_pays.csv"), RANGES, pays)
        for r in pays:
            span = f"{r['pays_gbps']} Gb/s" if r["pays_gbps"] else "nowhere"
            most = f"most {r['most_gain']:.2f}x at {r['most_at_gbps']:g} Gb/s"
            print(f"  {r['network']:11}{r['card']:16}against {r['against']:23}{span:24}{most}")
        if o.picture:
            picture(rows, o.device, o.picture)
    if o.published:
        table = list(published(o.card))
        write(o.published, TABLE, table)
        for r in table:
            steps = f"/ WA {r['published_over_wa']:.2f} published, {r['predicted_over_wa']:.2f} predicted"
            print(f"  {r['network']:11}{r['system']:7}{steps}; communication {-r['predicted_comm_cut']:+.1%}")
    if o.switch:
        write(o.switch, SWITCH, list(switched(o.networks, o.device)))


if __name__ == "__main__":
    main()
