"""How long an answer of the what-if page takes as one drags, on this machine.

    python benchmarks/serve_latency.py --out RESULTS/serve_latency.csv

RESULTS is benchmarks/results. One process: server and client in one thread each, without a socket between them. Each model is
asked about at every number of nodes from 2 up, as by a slider; no answer is cached. ``answer`` is the whole reply, ``search``
the slower one, and ``processor`` the processor time of the same, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from rows import append
from starlette.testclient import TestClient

from paceline.serve.app import application
from paceline.serve.selection import start

COLUMNS = ("what", "workload", "calls", "median_ms", "p90_ms", "slowest_ms", "processor_median_ms")
WORKLOADS = ("llama-3-8b", "resnet-50", "bert-large", "gpt2-xl", "mixtral-8x7b")
HOST = "http://127.0.0.1:7223"


def timed(what: str, workload: str, calls: int) -> dict[str, object]:
    """Times of so many requests, each with one node more."""
    page = TestClient(application(), base_url=HOST)
    chosen = {**start(), "workload": workload}
    wall, processor = [], []
    for nodes in range(1, calls + 2):
        begun, spent = time.perf_counter(), time.process_time()
        reply = page.get(f"/{what}", params={**chosen, "nodes": str(nodes)}, headers={"Sec-Fetch-Dest": "empty"})
        wall.append(1e3 * (time.perf_counter() - begun))
        processor.append(1e3 * (time.process_time() - spent))
        if reply.status_code != 200:
            raise SystemExit(f"{workload} on {nodes} nodes: {reply.text}")
    wall, processor = wall[1:], processor[1:]  # the first loads the layer table and the templates
    return {
        "what": what,
        "workload": workload,
        "calls": calls,
        "median_ms": round(statistics.median(wall), 1),
        "p90_ms": round(sorted(wall)[min(calls - 1, int(0.9 * calls))], 1),
        "slowest_ms": round(max(wall), 1),
        "processor_median_ms": round(statistics.median(processor), 1),
    }


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    options = parser.parse_args()
    for what, calls in (("answer", options.calls), ("search", max(1, options.calls // 5))):
        for name in options.workloads:
            row = timed(what, name, calls)
            append(options.out, COLUMNS, row)
            print(f"{what:<8} {name:<14} median {row['median_ms']} ms, p90 {row['p90_ms']} ms", flush=True)


if __name__ == "__main__":
    main()
