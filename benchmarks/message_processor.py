"""Processor seconds of a small message: what a rank takes to send one to a peer and to receive one from it.

    python benchmarks/message_processor.py --out benchmarks/results/message_processor.csv

The calls are those of an exchange (``batch_isend_irecv`` of gloo), on loopback. Seconds are the mean of all ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lab_cases
from rows import append

from paceline import lab

COLUMNS = ("hosts", "size", "rounds", "user_s", "system_s", "processor_s", "wall_s")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 4096], help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    for hosts in o.hosts:
        spec = {"rounds": o.rounds}
        for found in lab_cases.run(lab.loopback(hosts), spec, [{"size": size} for size in o.sizes], 300, "message_rank.py"):
            row = {"hosts": hosts, "rounds": o.rounds, **found}
            append(o.out, COLUMNS, {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()})
            print(f"{hosts} hosts, {row['size']} bytes: {1e6 * row['processor_s']:.0f} us of a processor", flush=True)


if __name__ == "__main__":
    main()
