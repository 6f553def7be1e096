"""Whether a change of the code made it slower: two checkouts side by side in one run.

    python benchmarks/refactor_speed.py --before OLD --after . --out RESULTS/refactor_speed.csv

RESULTS is benchmarks/results; OLD is another checkout, built with ``make native``. Both have a process of their own for each
round. Each measurement is taken in one and at once in the other, in turns first, so that what else happens on the machine slows
both. A row has the median of each side, the median ratio of such pairs, and the lowest and the highest of the rounds.

Measured are ``--help`` and ``predict`` from a cold start; a call of ``predict`` (the strategy is built in it) and its command
line in a warm process; ``plan`` over more than 100,000 strategies; each codec, native, on one thread; a step of
DistributedDataParallel on two ranks over gloo, by compression. Warm ``predict`` and ``plan`` are in processor time, the others
by the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = (
    "what",
    "before_ms",
    "after_ms",
    "ratio",
    "lowest_ratio",
    "highest_ratio",
    "rounds",
    "pairs",
    "commit_before",
    "commit_after",
)
SIDES = ("before", "after")
PREDICT = (
    "predict {network} --device A100 --devices-per-node 8 --nodes 4 --network 100Gb/s --global-batch {batch} --precision bf16"
)
PLAN = (
    "plan resnet-50 --device A100 --device V100 --device H100 --devices-per-node 8 --network 100Gb/s --max-nodes {nodes} --json"
)
NETWORKS = {"resnet-50": 2048, "bert-large": 512, "llama-2-7b": 64}
"""Global batches by network."""
HOOKS = ("terngrad", "int8", "topk", "inceptionn")
WIDTH, LAYERS = 1024, 4
"""Of the network whose gradients the hooks exchange: 4 MiB a layer."""

Seconds = dict[str, float]
Measure = Callable[[], Seconds]


def main() -> None:
    """Measure, print a table, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes (default 5)")
    parser.add_argument(
        "--pairs", type=int, default=15, help="measurements of each side in a round (default 15; of plan a third)"
    )
    parser.add_argument("--nodes", type=int, default=16, help="of the plan: 16 have 133,088 strategies (default 16)")
    parser.add_argument("--size", default="4MB", help="of a codec's tensor (default 4MB)")
    parser.add_argument("--only", nargs="+", default=["cold", "predict", "plan", "codec", "hook"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.ask:
        _answer(o.size, o.nodes)
        return
    trees = {"before": o.before.resolve(), "after": o.after.resolve()}
    rounds = [_round(trees, o.only, o.pairs, o.size, o.nodes, first=number % 2) for number in range(o.rounds)]
    commits = {f"commit_{side}": _commit(tree) for side, tree in trees.items()}
    rows = [{**row, "rounds": o.rounds, "pairs": o.pairs, **commits} for row in compare(rounds)]
    print(f"{'':<36}{'before ms':>10}{'after ms':>10}{'ratio':>7}  of the rounds")
    for row in rows:
        print(
            f"{row['what']:<36}{row['before_ms']:>10}{row['after_ms']:>10}{row['ratio']:>7}"
            f"  {row['lowest_ratio']} to {row['highest_ratio']}"
        )
    if o.out:
        from rows import append

        for row in rows:
            append(o.out, COLUMNS, row)


Round = dict[str, dict[str, list[float]]]
"""Seconds by what was measured and by side."""


def compare(rounds: Sequence[Round]) -> list[dict[str, object]]:
    """Medians of each side; the median ratio of two neighbours, of all rounds and of the rounds with the lowest and highest."""
    rows: list[dict[str, object]] = []
    for what in rounds[0]:
        medians = {side: statistics.median(itertools.chain(*(one[what][side] for one in rounds))) for side in SIDES}
        ratios = [
            [after / before for before, after in zip(*(one[what][side] for side in SIDES), strict=True)] for one in rounds
        ]
        by_round = [statistics.median(pairs) for pairs in ratios]
        rows.append(
            {
                "what": what,
                **{f"{side}_ms": f"{1e3 * seconds:.4g}" for side, seconds in medians.items()},
                "ratio": f"{statistics.median(itertools.chain(*ratios)):.3f}",
                "lowest_ratio": f"{min(by_round):.3f}",
                "highest_ratio": f"{max(by_round):.3f}",
            }
        )
    return rows


def _round(trees: dict[str, Path], groups: Sequence[str], pairs: int, size: str, nodes: int, first: int) -> Round:
    """``pairs`` measurements of each side, in fresh processes; ``first``: which side begins."""
    measured: Round = {}
    with contextlib.ExitStack() as stack:
        sides = {side: stack.enter_context(_Side(tree, size, nodes)) for side, tree in trees.items()}
        for group in groups:
            for pair in range(-1, max(1, pairs // 3) if group == "plan" else pairs):
                for side in SIDES if (pair + first) % 2 else SIDES[::-1]:
                    for what, seconds in sides[side].measure(group).items():
                        if pair >= 0:  # the one before warms up
                            measured.setdefault(what, {name: [] for name in SIDES})[side].append(seconds)
    return measured


def _commit(tree: Path) -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=tree, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


@dataclass
class _Side:
    """A checkout and its two processes, which measure when they are asked; both do for a step of two ranks."""

    tree: Path
    size: str
    nodes: int
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> _Side:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        for rank in range(2):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            command = [sys.executable, __file__, "--before", ".", "--ask", "--size", self.size, "--nodes", str(self.nodes)]
            pipe = subprocess.PIPE
            self.ranks.append(
                subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env={**self._environment(), **place})
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            process.stdin.close()
        for process in self.ranks:
            process.wait(60)

    def measure(self, group: str) -> Seconds:
        """Seconds by what."""
        if group == "cold":
            commands = {"--help": "--help", "predict": PREDICT.format(network="resnet-50", batch=2048)}
            return {f"cold start: {what}": self._cold(command) for what, command in commands.items()}
        asked = self.ranks if group == "hook" else self.ranks[:1]
        for process in asked:
            print(group, file=process.stdin, flush=True)
        replies = [_reply(process) for process in asked]
        return replies[0]

    def _cold(self, command: str) -> float:
        begin = time.perf_counter()
        whole = [sys.executable, "-m", "paceline", *shlex.split(command)]
        subprocess.run(whole, stdout=subprocess.DEVNULL, check=True, env=self._environment())
        return time.perf_counter() - begin

    def _environment(self) -> dict[str, str]:
        # Byte code is kept: else one checkout that has it would start faster than one that has none.
        return {**os.environ, "PYTHONPATH": str(self.tree / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}


def _reply(process: subprocess.Popen[str]) -> Seconds:
    for line in process.stdout:
        if line.startswith(_MARK):  # what else it prints is gloo's
            seconds: Seconds = json.loads(line.removeprefix(_MARK))
            return seconds
    raise SystemExit(f"a process ended with code {process.wait()}; its error stands above")


_MARK = "measured "


def _answer(size: str, nodes: int) -> None:
    """In a process of its own: measure what each line of stdin names, until there is none."""
    makers: dict[str, Callable[[], Measure]] = {
        "predict": _predict,
        "plan": lambda: lambda: {"plan resnet-50": _run(PLAN.format(nodes=nodes))[0]},
        "codec": lambda: lambda: _codecs(size),
        "hook": _hooks,
    }
    measures: dict[str, Measure] = {}
    for line in sys.stdin:
        group = line.strip()
        if group not in measures:
            measures[group] = makers[group]()
        print(_MARK + json.dumps(measures[group]()), flush=True)
    if "hook" in measures:
        import torch.distributed as dist

        dist.destroy_process_group()


def _run(command: str) -> tuple[float, str]:
    """Processor seconds of a command line in this process, and what it prints."""
    from paceline.cli import main

    out = io.StringIO()
    begin = time.process_time()
    with contextlib.redirect_stdout(out):
        code = main(shlex.split(command))
    seconds = time.process_time() - begin
    if code:
        raise SystemExit(f"paceline {command} ended with code {code}")
    return seconds, out.getvalue()


def _predict() -> Measure:
    from paceline import Strategy, hardware, predict
    from paceline import workload as workloads

    named: Callable[[str], Any] = getattr(workloads.Workload, "named", None) or workloads.workload  # as it was before
    cluster = hardware.cluster("A100", 8, 4, "100Gb/s")
    build: Callable[..., Any] = getattr(Strategy, "of", Strategy)  # one value of parts, or flat as it was
    tables = {name: named(name) for name in NETWORKS}
    times = itertools.count(1)

    def call(name: str) -> float:
        begin, calls = time.process_time(), 20
        for _ in range(calls):  # another batch each time
            batch = 32 * (1 + next(times) % 64)
            strategy = build(world_size=32, global_batch_size=batch, precision="bf16", compression="terngrad", optimizer="adam")
            predict(tables[name], cluster, strategy)
        return (time.process_time() - begin) / calls

    def line(name: str) -> float:
        return min(_run(PREDICT.format(network=name, batch=batch))[0] for batch in [NETWORKS[name]] * 3)

    return lambda: {
        **{f"predict {name}, a call": call(name) for name in NETWORKS},
        **{f"predict {name}, a command line": line(name) for name in NETWORKS},
    }


def _codecs(size: str) -> Seconds:
    lines = _run(f"bench codec --size {size} --threads 1 --backend native --json")[1].splitlines()
    speeds = [json.loads(line) for line in lines]
    return {f"{one['codec']}, {one['direction']}": 4e-9 * one["elements"] / one["gb_per_s"] for one in speeds}


def _hooks() -> Measure:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import paceline

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    models = {}
    for compression in HOOKS:
        models[compression] = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
        paceline.attach(models[compression], compression)
    x = torch.randn(4, WIDTH)

    def step(compression: str, steps: int = 3) -> float:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            models[compression].zero_grad()
            (1e3 * models[compression](x).square().mean()).backward()  # gradients as large as a network's
        dist.barrier()
        return (time.perf_counter() - begin) / steps

    return lambda: {f"a step with {compression}, 2 ranks": step(compression) for compression in HOOKS}


if __name__ == "__main__":
    main()
