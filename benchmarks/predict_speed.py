"""How long a prediction takes, and how long it takes to rank very many strategies, on this machine.

    python benchmarks/predict_speed.py --out RESULTS/predict_speed.csv

RESULTS is benchmarks/results. One process, one thread. ``predict`` is the median of whole calls, each with another batch; the
workload is loaded before. ``rank`` is ``Predictor.many`` of random legal strategies on random clusters, with nothing prepared
before. Workers, batch, micro steps, precision, compression, exchange, bucket size, sharding, recomputation, optimizer and
device vary.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from rows import append

from paceline.hardware import cluster
from paceline.hardware.cluster import Cluster
from paceline.prediction import ORDINARY, predict
from paceline.strategy import COMPRESSIONS, OPTIMIZERS, SHARDINGS, Strategy, carriers
from paceline.workload import Workload

COLUMNS = ("what", "workload", "strategies", "seconds", "ms_each")
WORKLOADS = ("resnet-50", "bert-large", "llama-2-7b")
PLACES = [(device, 8, nodes) for device in ("V100", "A100", "H100", "T4") for nodes in (1, 2, 4, 8, 16, 32)]
TRAINED = tuple(name for name, optimizer in OPTIMIZERS.items() if optimizer.trained)
"""Optimizers that go with every sharding."""
PAIRS = [(c.name, exchange.name) for c in COMPRESSIONS.values() for exchange in carriers(c) if not exchange.uses_switch]


def strategies(count: int, seed: int = 0) -> list[tuple[Cluster, Strategy]]:
    """So many random legal candidates."""
    draw = random.Random(seed).choice
    places = [cluster(*place, "100Gb/s") for place in PLACES]
    candidates = []
    for _ in range(count):
        place, sharding = draw(places), draw(("ddp", "ddp", *SHARDINGS))
        compression, exchange = draw(PAIRS) if sharding == "ddp" else ("dense", "allreduce")
        times, micro = draw((1, 2, 4, 8)), draw((1, 2, 4, 8, 16, 32, 64, 128))
        candidates.append(
            (
                place,
                Strategy.of(
                    world_size=place.world_size,
                    global_batch_size=place.world_size * times * micro,
                    grad_accum_steps=times,
                    precision=draw(("fp32", "fp16")),
                    compression=compression,
                    exchange=exchange,
                    sharding=sharding,
                    recompute=draw((False, True)),
                    optimizer=draw(TRAINED),
                    bucket_bytes=draw((5 << 20, 25 << 20, 100 << 20)),
                ),
            )
        )
    return candidates


def one_at_a_time(name: str, count: int) -> float:
    """Median seconds of a prediction, each of another batch."""
    net, place = Workload.named(name), cluster("A100", 8, 4, "100Gb/s")
    strategies = [Strategy.of(world_size=32, global_batch_size=32 * (1 + i), precision="bf16") for i in range(count + 1)]
    predict(net, place, strategies[-1])
    taken = []
    for strategy in strategies[:-1]:
        start = time.perf_counter()
        predict(net, place, strategy)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def ranked(name: str, count: int) -> float:
    """Seconds in which so many candidates are ranked."""
    net, candidates = Workload.named(name), strategies(count)
    start = time.perf_counter()
    result = ORDINARY.many(net, candidates)
    result.step_s.argsort()
    taken = time.perf_counter() - start
    assert not result.refused
    return taken


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name in options.workloads:
        for what, count, seconds in (
            ("predict", 1, one_at_a_time(name, options.calls)),
            ("rank", options.strategies, ranked(name, options.strategies)),
        ):
            each = f"{1e3 * seconds / count:.4g}"
            append(options.out, COLUMNS, dict(zip(COLUMNS, (what, name, count, f"{seconds:.4g}", each), strict=True)))
            print(f"{what:<8} {name:<12} {count:>7} in {seconds:8.4g} s, {each} ms each", flush=True)


if __name__ == "__main__":
    main()
