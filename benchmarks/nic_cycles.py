"""Cycles of the INCEPTIONN engines in Amaranth's simulator: until the first beat comes out, and of a frame in a row of frames.

    python benchmarks/nic_cycles.py --out benchmarks/results/nic_cycles.csv

A frame is a packet of 1,500 bytes: three header beats (66 bytes) and 362 values, drawn from N(0, 0.01). Nothing stalls on
either side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rows import append

from paceline.nic.bodies import encoded, header

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from engine_simulation import Frame, simulate

COLUMNS = (
    "engine",
    "format",
    "bound",
    "values",
    "frames",
    "first_out_cycles",
    "cycles_a_frame",
    "beats_in_a_frame",
    "beats_out_a_frame",
)
VALUES, FRAMES, HEADS = 362, 8, 3
BOUNDS = {"inceptionn": 10, "inceptionn-scaled": 6}


def measure(name: str, codec: str) -> dict[str, Any]:
    """One engine and format."""
    from paceline.nic.engine.compressor import Compressor
    from paceline.nic.engine.decompressor import Decompressor

    k, scaled = BOUNDS[codec], codec == "inceptionn-scaled"
    values = (np.random.default_rng(0).standard_normal(VALUES) * 0.01).astype(np.float32)
    plain, coded = header(HEADS) + values.tobytes(), header(HEADS) + encoded(values, k, scaled)
    registers = {"head": HEADS, "k": k, "scaled": int(scaled)}
    if name == "compressor":
        engine, frame = Compressor(), Frame(plain, registers)
    else:
        engine, frame = Decompressor(), Frame(coded, {**registers, "values": VALUES})
    many, one = simulate(engine, [frame] * FRAMES), simulate(type(engine)(), [frame])
    return {
        "engine": name,
        "format": codec,
        "bound": 2.0**-k,
        "values": VALUES,
        "frames": FRAMES,
        "first_out_cycles": one.beats[0],
        "cycles_a_frame": round((many.beats[-1] - one.beats[-1]) / (FRAMES - 1), 3),
        "beats_in_a_frame": -(-len(frame.content) // 32),
        "beats_out_a_frame": len(one.beats),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for codec in BOUNDS:
        for name in ("compressor", "decompressor"):
            row = measure(name, codec)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            append(out, COLUMNS, row)


if __name__ == "__main__":
    main()
