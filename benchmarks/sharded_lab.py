"""Sharded training with compressed gradients on an emulated cluster: steps and bytes, predicted and measured.

    python benchmarks/sharded_lab.py --out benchmarks/results/sharded_lab.csv

Every case trains the same network from the same weights on the same samples. Training, codecs, sockets and shaped links are
real. A sleep in the forward pass stands for an accelerator's compute. The predictions know a step of workers that exchange
nothing, plain and each under FSDP2 by itself; the link's nominal rate; the time of a small message between hosts; and the bytes
that a strategy sends. No row of the lab is fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lab_cases
from rows import append

from paceline.workload import Workload

COLUMNS = (
    "model",
    "data",
    "hosts",
    "link",
    "sharding",
    "compression",
    "exchange",
    "gather_bits",
    "shard_devices",
    "bucket_bytes",
    "steps",
    "compute_s",
    "hop_s",
    "step_s",
    "step_low_s",
    "step_high_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "error",
    "within",
    "socket_bytes",
    "metered_bytes",
    "predicted_bytes",
    "loss",
)
CAPTION = "emulated: a sleep stands for compute; training, exchange and {hosts} shaped links are real"
ALONE = [{"sharding": "alone", "compression": "dense", "exchange": "", "under": under} for under in ("", "zero2", "zero3")]


def cases() -> list[dict[str, Any]]:
    """What is compared, workers that exchange nothing first."""
    compressed = [("dense", ""), ("bf16", ""), ("int8", "sharded"), ("int8", "ring"), ("terngrad", "sharded")]
    every = [
        {"sharding": sharding, "compression": compression, "exchange": exchange}
        for sharding in ("zero2", "zero3")
        for compression, exchange in compressed
    ]
    return [
        *ALONE,
        {"sharding": "ddp", "compression": "dense", "exchange": ""},
        *every,
        *({"sharding": "zero3", "compression": "int8", "exchange": "sharded", "gather_bits": bits} for bits in (16, 8)),
        # HSDP: two hosts share out a copy, and the exchange is between copies.
        *(
            {"sharding": sharding, "compression": compression, "exchange": exchange, "shard_devices": 2}
            for sharding in ("zero2", "zero3")
            for compression, exchange in (("dense", ""), ("int8", "sharded"), ("terngrad", "allgather"))
        ),
    ]


def measure(link: str, o: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case over one link."""
    table = Workload.named(o.model)
    spec = {
        "model": o.model,
        "data": o.data,
        "batch": o.batch,
        "steps": lab_cases.enough(link, o.steps) + o.warm,
        "warm": o.warm,
        "lr": 0.02,
        "pace_s": o.pace,
        "seed": 0,
        "bucket_bytes": o.bucket_bytes,
    }
    with lab_cases.cluster(o.hosts, link) as on:
        outcomes = lab_cases.run(on, spec, cases()[: o.cases + len(ALONE)], script="sharded_rank.py")
    alone = {case["under"] or "ddp": case for case in outcomes[: len(ALONE)]}
    return [row(case, link, alone[case["sharding"]], table, o) for case in outcomes[len(ALONE) :]]


def row(case: Mapping[str, Any], link: str, alone: Mapping[str, Any], table: Workload, o: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one case and its prediction, which knows the same worker ``alone``."""
    compute, hop = alone["step_s"], alone["hop_s"]
    choices = {name: case.get(name, 0) for name in ("gather_bits", "shard_devices")}
    strategy = {"sharding": case["sharding"], **choices, "bucket_bytes": o.bucket_bytes}
    if case["sharding"] == "ddp":
        strategy = {}
    # The sleep is in the forward pass, and a backward pass on the host is too short to hide an exchange.
    guess = lab_cases.predicted(table, o.hosts, link, {**case, "local": strategy}, compute, 0.0, overlap=False, hop_s=hop)
    found = {
        "model": o.model,
        "data": o.data.partition(":")[0],
        "hosts": o.hosts,
        "link": link,
        **choices,
        "bucket_bytes": o.bucket_bytes,
        "compute_s": compute,
        "hop_s": hop,
        "predicted_s": guess.step_time_s,
        "predicted_low_s": guess.low_s,
        "predicted_high_s": guess.high_s,
        "error": guess.step_time_s / case["step_s"] - 1,
        "within": int(guess.low_s <= case["step_s"] <= guess.high_s),
        "predicted_bytes": guess.wire_bytes_per_device,
        **{name: case[name] for name in COLUMNS if name in case and name != "hop_s"},
    }
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet5", help="a named network with a layer table")
    parser.add_argument("--data", default="digits", help="as of paceline train")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", nargs="+", default=["100Mb/s", "1Gb/s"])
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker's step")
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of sleep a step")
    parser.add_argument("--bucket-bytes", type=int, default=1 << 18, help="least bytes of a unit's fp32 weights")
    parser.add_argument("--cases", type=int, default=99, help="the first so many")
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    print(CAPTION.format(hosts=o.hosts), flush=True)
    for link in map(lab_cases.actual, o.links):
        for found in measure(link, o):
            append(o.out, COLUMNS, found)
            what = f"{found['sharding']:6} {found['compression']:9} {found['exchange'] or '-':9} {found['gather_bits']:2}"
            what += f" {found['shard_devices']:2}"
            print(
                f"  {link:9} {what}  step {found['step_s']:.4g} s, predicted {found['predicted_s']:.4g} "
                f"({found['predicted_low_s']:.3g}-{found['predicted_high_s']:.3g}), "
                f"{found['metered_bytes']:,} bytes, predicted {found['predicted_bytes']:,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
