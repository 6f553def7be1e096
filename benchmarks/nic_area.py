"""What the card's engine takes of an FPGA and at what clock, block by block, as rows of a CSV file.

    python benchmarks/nic_area.py --out RESULTS/nic_area.csv

RESULTS is benchmarks/results. A block has one row of cells a family and one row of clocks a device. Gb/s is 256 bits a cycle at
the median clock of the seeds. Beside it stand what the authors' card reached and their goal (Li et al., MICRO 2018).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rows import append

from paceline.nic.area import PUBLISHED_GBPS, SYNTHESIS, Cells, blocks, rows

COLUMNS = ("block", "on", "lut", "ff", "carry", "memory", "multiplier", "mhz", "mhz_least", "mhz_most", "seeds", "gbps", "note")


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(SYNTHESIS), default=list(SYNTHESIS))
    parser.add_argument("--blocks", nargs="+", choices=list(blocks()), default=[])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of the placements; none: cells alone")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for found in rows(options.families, options.seeds, options.blocks):
        row: dict[str, object] = dict.fromkeys(COLUMNS, "")
        if isinstance(found, Cells):
            row |= {"on": found.family, **{k: v for k, v in vars(found).items() if k in COLUMNS}}
        else:
            row |= {"block": found.block, "on": found.device, "note": found.verdict}
            if found.megahertz:
                clocks = found.megahertz
                row |= {"mhz": f"{found.median:.1f}", "mhz_least": f"{min(clocks):.1f}", "mhz_most": f"{max(clocks):.1f}"}
                row |= {"seeds": len(clocks), "gbps": f"{found.gbps:.1f}"}
        append(options.out, COLUMNS, row)
        print("  " + "  ".join(f"{k} {v}" for k, v in row.items() if v != ""), flush=True)
    print(f"  Published: {PUBLISHED_GBPS['prototype']} Gb/s (the authors' card), {PUBLISHED_GBPS['goal']} Gb/s (goal, 100 MHz)")


if __name__ == "__main__":
    main()
