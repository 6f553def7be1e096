"""Reach of slimming: which layers of 80 architectures lose structures, and whether the smaller network computes the same.

    python benchmarks/slim_reach.py --out benchmarks/results/slim_reach.csv
    python benchmarks/slim_reach.py --only llama unet --out /tmp/rows.csv
    python benchmarks/slim_reach.py --peer --out benchmarks/results/slim_reach_peer.csv

Networks have random weights, those of Hugging Face and most of timm at small sizes of the same architecture. ``layers`` have
weights. Layers that stay for a reason of arithmetic (``BY_ARITHMETIC``) count as ``fixed``; ``left`` could shrink and do not.
``parity`` is the difference between the network without every second structure of each layer and the masked one, relative to
the largest output. With ``--peer``, Torch-Pruning 1.6 (pip install torch-pruning) slims the same networks instead: see
``reach_peer.py``.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import reach_peer
import torch
from reach_networks import NETWORKS
from rows import append

from paceline.errors import UserError, shorten
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import OUTPUT, TIED
from paceline.slimming.structures.tracing import structures_of

COLUMNS = (
    "architecture",
    "from",
    "parameters",
    "layers",
    "shrink",
    "fixed",
    "left",
    "structures",
    "parity",
    "seconds",
    "why",
)
BY_ARITHMETIC = (
    OUTPUT,
    TIED,
    "layer_norm averages over it",  # and subtracts the mean
    "a mean that is subtracted",  # the same, written out
    "instance_norm averages over it",
    "rows of an embedding are tokens",
    "softmax needs it whole",  # a router's scores, attention's tokens
    "adds what has a fixed size",  # an input that is added
    "topk needs it whole",
)
"""Parts of reasons for which no smaller network computes the same."""


def measure(name: str) -> dict[str, Any]:
    """Return the row of an architecture."""
    source, make = NETWORKS[name]
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    row: dict[str, Any] = {"architecture": name, "from": source, "parameters": sum(each.numel() for each in model.parameters())}
    start = time.process_time()
    try:
        found = sound(structures_of(model, inputs), model, inputs)
    except UserError as error:
        return row | {"why": shorten(error.message, 120), "left": "all"}
    found.name_whole("")
    widths = found.without_kernels().layers()
    removed = {each.number for every in widths.values() for each in every[1::2]}
    apart = differs(masked(model, found, removed), shrunk(model, found, removed), inputs) if removed else 0.0
    left = {path: why for path, why in found.kept.items() if path in found.widths and not fixed(why)}
    narrower = {part.parameter.rpartition(".")[0] for every in widths.values() for each in every for part in each.slices}
    shrinking = [path for path in found.widths if path in narrower and path not in found.kept]
    return row | {
        "layers": len(found.widths),
        "shrink": len(shrinking),
        "fixed": len(found.widths) - len(shrinking) - len(left),
        "left": len(left),
        "structures": sum(map(len, widths.values())),
        "parity": f"{apart:.1g}",
        "seconds": f"{time.process_time() - start:.1f}",
        "why": shorten("; ".join(f"{path}: {why}" for path, why in list(left.items())[:1]), 120),
    }


def fixed(why: str) -> bool:
    """Return whether all reasons are of arithmetic."""
    return all(any(part in each for part in BY_ARITHMETIC) for each in why.split("; "))


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--peer", action="store_true", help="slim by Torch-Pruning instead")
    parser.add_argument(
        "--limit", type=float, default=reach_peer.LIMIT_S, help="processor seconds of Torch-Pruning (default 60)"
    )
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    columns = reach_peer.COLUMNS if o.peer else COLUMNS
    for name in o.only:
        row = reach_peer.measure(name, o.limit) if o.peer else measure(name)
        append(o.out, columns, {column: row.get(column, "") for column in columns})
        print({key: value for key, value in row.items() if value != ""}, flush=True)


if __name__ == "__main__":
    main()
