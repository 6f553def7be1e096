"""Runs ``paced.py`` on every host of an emulated cluster and collects what rank 0 measured."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from paceline import lab
from paceline.calibration.constants import CATALOGUE
from paceline.hardware import cluster as make_cluster
from paceline.hardware import nic
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.units import parse_bandwidth
from paceline.workload import Workload

HERE = Path(__file__).parent
CPU = "Xeon Platinum 8380"  # a CPU of the catalogue, for its codec; its compute is scaled to the paced seconds
EMULATED = "emulated: compute is a sleep, gradients are {gradients}, the exchange is real"
HEADING = EMULATED + "\n{hosts} hosts with {link} links, all on one machine"
NOISE = "made up (Student-t noise)"
TABLE_III = "made up (magnitudes in the shares of INCEPTIONN's Table III)"
"""What ``paced.made_up`` draws: without shares, and with them."""
SLOW, ENOUGH = 12.5e6, 20
"""Links of so many bytes/s and less have at least so many timed steps: there a burst of the shaper is seen in a few."""


def actual(link: str) -> str:
    """``link``, or "loopback" where an emulated cluster is impossible: said aloud, and what the results then say."""
    lacking = lab.missing()
    if link != "loopback" and lacking:
        print(f"no emulated cluster here ({'; '.join(lacking)}): loopback, links are not {link}", flush=True)
        return "loopback"
    return link


@contextmanager
def cluster(hosts: int, link: str, nic: str = "") -> Iterator[Any]:
    """An emulated cluster for the length of the block, its hosts behind cards where ``nic`` names one; loopback has no links to
    wait for, and no cards."""
    if link == "loopback":
        yield lab.loopback(hosts)
    else:
        with lab.up(hosts, link, name=f"b{os.getpid()}", **({"nic": nic} if nic else {})) as emulated:
            yield emulated


def gradients(folder: Path | None, net: str, made_up: str, drawn: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """What ``paced.py`` hands over and what to call it: recorded where there is a folder, else ``drawn``, named ``made_up``."""
    if folder is None:
        return dict(drawn), made_up
    from recorded_gradients import Recording  # and torch: not where nothing was recorded

    recording = Recording(folder.absolute() / net)
    return {"recorded": str(recording.folder)}, recording.said


def named(rows: Sequence[Mapping[str, Any]], made_up: str) -> str:
    """What the gradients of these rows are; rows from before there were recorded ones do not say it."""
    return " or ".join(dict.fromkeys(str(row.get("gradients") or made_up) for row in rows))


def enough(link: str, steps: int) -> int:
    """``steps``, or more of them where the link is slow."""
    return max(steps, ENOUGH) if link != "loopback" and parse_bandwidth(link) <= SLOW else steps


def shapes(table: Workload) -> list[list[int]]:
    """Shapes of every parameter, in model order."""
    return [list(p.shape) for p in table.parameters]


def backward_shares(table: Workload) -> list[float]:
    """Each parameter's share of the backward pass: its layer's share of the FLOPs, spread over the layer's parameters."""
    flops = [max(1.0, layer.flops_backward) for layer in table.layers]
    members = [sum(p.layer == i for p in table.parameters) or 1 for i in range(len(flops))]
    weights = [flops[p.layer] / members[p.layer] for p in table.parameters]
    return [w / sum(weights) for w in weights]


def overlapped(table: Workload, compute_s: float, warm: int, steps: int) -> dict[str, Any]:
    """What ``paced.py`` runs: a third of ``compute_s`` forward, the rest backward over the layers, the exchange beside it."""
    return {
        "shapes": shapes(table),
        "forward_s": compute_s / 3,
        "backward_s": [compute_s * 2 / 3 * share for share in backward_shares(table)],
        "update_s": 0.0,
        "gradient": {},
        "warm": warm,
        "steps": steps,
    }


def run(
    on: Any, spec: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], timeout: float = 4 * 3600, script: str = "paced.py"
) -> list[dict[str, Any]]:
    """The cases' measurements, in order, by a script of this folder. Raises lab.HostFailed when a host fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps({**spec, "cases": list(cases)}))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        try:
            results = on.run([sys.executable, str(HERE / script), str(path)], env=environment, timeout=timeout)
        except lab.HostFailed as error:
            print(next((r.stderr for r in error.results if r.host == error.host), ""), file=sys.stderr)
            raise
    lines = [line.partition("RESULT ")[2] for line in results[0].stdout.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in lines]


@cache
def cores_worth() -> float:
    """What all processors of this machine count together in the time of one: virtual ones may share a core."""
    processors = os.cpu_count() or 1
    with multiprocessing.Pool(processors) as pool:
        alone = pool.apply(_count)
        return max(1.0, sum(pool.map(_count, range(processors), chunksize=1)) / alone)


def _count(_: int = 0) -> int:
    end, count = time.perf_counter() + 0.5, 0
    while time.perf_counter() < end:
        count += 1
    return count


def predicted(
    table: Workload,
    hosts: int,
    link: str,
    case: Mapping[str, Any],
    compute_s: float,
    update_s: float,
    overlap: bool,
    at_most: float = math.inf,
    codec_cores: float = 0.0,
    hop_s: float = 0.0,
    worker_times: tuple[float, ...] = (),
) -> Prediction:
    """The step that Paceline predicts: paced compute, the link's datasheet rate, codecs on this machine's shared cores.

    Nothing of the exchange is measured; only what this machine's processors are worth together. ``torch:`` hooks are
    predicted as what they send. With ``codec_at`` nic the codec is in a card, ``case["card"]``. ``at_most`` is what this
    machine's cores carry for each host, in bytes/s; ``codec_cores`` what a codec has of them, by default an equal part.
    ``hop_s`` is the measured time of a small message between two hosts, 0 for the assumption of the link's kind.
    ``worker_times`` are those of ``Predictor``.
    """
    name = {"torch:dense": "dense", "torch:fp16": "bf16", "torch:bf16": "bf16"}.get(case["compression"], case["compression"])
    options = dict(case.get("options", {}))
    pull = bool(options.pop("compress_pull", True))
    where = make_cluster(CPU, 1, hosts, link)
    rate = where.network.bandwidth
    where = where.changed(network=replace(where.network, bandwidth=replace(rate, value=min(rate.value, at_most))))
    if hop_s:
        latency = replace(where.network.latency, value=hop_s, source="measured: a small all-gather between all hosts")
        where = where.changed(network=replace(where.network, latency=latency))
    if case.get("codec_at") == "nic":
        where = where.changed(nic=nic(case.get("card", "")))
    strategy = Strategy.of(
        world_size=hosts,
        global_batch_size=hosts,
        compression=name,
        exchange=case.get("exchange", ""),
        options={**options, **case.get("assumed", {})},
        compress_pull=pull,
        codec_at=case.get("codec_at", ""),
        **case.get("local", {}),
    )
    share = codec_cores or cores_worth() / hosts
    low, typical, high = (replace(level, codec_cores=share) for level in CATALOGUE)
    alone = Strategy.of(world_size=1, global_batch_size=1)
    plain = Predictor(constants=(low, typical, high)).step(table, make_cluster(CPU, 1, 1, link), alone)
    factor = (compute_s + update_s) / plain.step_time_s
    timed = low.timed(factor), typical.timed(factor), high.timed(factor)
    return Predictor(overlap=overlap, constants=timed, worker_times=worker_times).step(table, where, strategy)


__all__ = [
    "EMULATED",
    "ENOUGH",
    "HEADING",
    "NOISE",
    "TABLE_III",
    "actual",
    "backward_shares",
    "cluster",
    "enough",
    "gradients",
    "named",
    "overlapped",
    "predicted",
    "run",
    "shapes",
]
