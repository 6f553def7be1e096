"""Processor time of plans of large networks, and of predictions, on this machine.

    python benchmarks/plan_speed.py --out RESULTS/plan_speed.csv

RESULTS is benchmarks/results. A plan is the command line ``paceline plan`` in this process, with the network's table loaded
before. Each case of several has a new process, so that none finds another's tables. ``seconds`` are processor seconds of one
thread; other work on the machine lengthens them by up to a half. ``predictions`` counts divided layouts that were predicted
in full. ``exactly`` searches one cluster, without the smaller ones that a plan also tries. A predicted step is the median of
calls, each with another batch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rows import append

from paceline.cli.command_line import main as command
from paceline.hardware import cluster
from paceline.planning.search.divided_layouts import search_divided
from paceline.planning.search.space import Space
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY, predict
from paceline.prediction.layouts.batch import OnMesh
from paceline.strategy import Strategy
from paceline.workload import Workload

COLUMNS = ("case", "seconds", "predictions")
NETWORK = "1x InfiniBand NDR"


def planned(workload: str, nodes: int) -> Callable[[], None]:
    """Return a function that plans on at most ``nodes`` nodes of eight H100."""
    arguments = [workload, "--device", "H100", "--devices-per-node", "8", "--max-nodes", str(nodes), "--network", NETWORK]

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command(["plan", *arguments])

    return run


def exactly(workload: str, nodes: int) -> Callable[[], None]:
    """Return a function that searches layouts on ``nodes`` nodes of eight H100."""
    space = Space(clusters=(cluster("H100", 8, nodes, NETWORK),), optimizer="adamw")
    return lambda: search_divided(Workload.named(workload), space, TrainingTarget(), Exclusions(), ORDINARY) and None


CASES: dict[str, tuple[str, Callable[[], None]]] = {
    "8B, up to 2 nodes": ("llama-3-8b", planned("llama-3-8b", 2)),
    "70B, up to 8 nodes": ("llama-3-70b", planned("llama-3-70b", 8)),
    "405B, up to 2048 nodes": ("llama-3-405b", planned("llama-3-405b", 2048)),
    "405B, up to 256 nodes": ("llama-3-405b", planned("llama-3-405b", 256)),
    "405B, exactly 2048 nodes": ("llama-3-405b", exactly("llama-3-405b", 2048)),
    "Qwen3-235B, up to 4 nodes": ("qwen-3-235b-a22b", planned("qwen-3-235b-a22b", 4)),
    "Qwen3-235B, up to 32 nodes": ("qwen-3-235b-a22b", planned("qwen-3-235b-a22b", 32)),
}
UNDIVIDED, DIVIDED = "llama-2-7b, one undivided prediction", "llama-3-70b, one divided prediction"


def measured(workload: str, run: Callable[[], None]) -> tuple[float, int]:
    """Return processor seconds and the number of divided layouts that were predicted in full."""
    calls, figures = 0, OnMesh.figures

    def counted(model: OnMesh, *candidate: object) -> tuple[float, float]:
        nonlocal calls
        calls += 1
        return figures(model, *candidate)  # type: ignore[arg-type]

    Workload.named(workload)
    OnMesh.figures = counted  # type: ignore[method-assign, assignment]
    start = time.process_time()
    try:
        run()
    finally:
        OnMesh.figures = figures  # type: ignore[method-assign]
    return time.process_time() - start, calls


def one_step(name: str, nodes: int, count: int = 100, **mesh: int) -> float:
    """Return the median processor seconds of a prediction."""
    net, place = Workload.named(name), cluster("H100", 8, nodes, NETWORK)
    data = place.world_size // (mesh.get("tensor", 1) * mesh.get("pipeline", 1))
    taken = []
    for more in range(1, count + 2):
        times = 8 * more if mesh else 1
        batch = data * (times if mesh else more)
        strategy = Strategy.of(data=data, global_batch_size=batch, micro_batches=times, precision="bf16", **mesh)
        start = time.process_time()
        predict(net, place, strategy)
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=(*CASES, UNDIVIDED, DIVIDED), default=(*CASES, UNDIVIDED, DIVIDED))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for case in options.cases:
        if len(options.cases) > 1:
            subprocess.run([sys.executable, __file__, "--cases", case, "--out", options.out], check=True)
            continue
        if case in CASES:
            seconds, predictions = measured(*CASES[case])
        elif case == UNDIVIDED:
            seconds, predictions = one_step("llama-2-7b", 4), 1
        else:
            seconds, predictions = one_step("llama-3-70b", 8, tensor=4, pipeline=4), 1
        append(options.out, COLUMNS, dict(zip(COLUMNS, (case, f"{seconds:.4g}", predictions), strict=True)))
        print(f"{case:<40} {seconds:8.4g} s, {predictions:,} predictions", flush=True)


if __name__ == "__main__":
    main()
