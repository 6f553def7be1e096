"""Runs ``paced.py`` on every host of an emulated cluster and collects what rank 0 measured."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline import lab
from paceline.workload import Workload, workload

HERE = Path(__file__).parent
HEADING = "emulated: compute is a sleep, gradients and exchange are real; {hosts} hosts with {link} links on one machine"


@contextmanager
def cluster(hosts: int, link: str) -> Iterator[Any]:
    """An emulated cluster for the length of the block; where the privileges are missing, unshaped loopback, said aloud."""
    if lab.missing():
        print(f"no privileges for an emulated cluster ({'; '.join(lab.missing())}): loopback, links are not {link}", flush=True)
        yield lab.loopback(hosts)
        return
    with lab.up(hosts, link, name="bench") as made:
        yield made


def shapes(table: Workload) -> list[list[int]]:
    """Shapes of every parameter, in model order."""
    return [list(p.shape) for p in table.parameters]


def backward_shares(table: Workload) -> list[float]:
    """Each parameter's share of the backward pass: its layer's share of the FLOPs, spread over the layer's parameters."""
    flops = [max(1.0, layer.flops_backward) for layer in table.layers]
    members = [sum(p.layer == i for p in table.parameters) or 1 for i in range(len(flops))]
    weights = [flops[p.layer] / members[p.layer] for p in table.parameters]
    return [w / sum(weights) for w in weights]


def run(on: Any, spec: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], timeout: float = 1800) -> list[dict[str, Any]]:
    """The cases' measurements, in order. Raises lab.HostFailed when a host fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps({**spec, "cases": list(cases)}))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)}
        results = on.run([sys.executable, str(HERE / "paced.py"), str(path)], env=environment, timeout=timeout)
    found = [line.partition("RESULT ")[2] for line in results[0].stdout.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in found]


__all__ = ["HEADING", "backward_shares", "cluster", "run", "shapes", "workload"]
