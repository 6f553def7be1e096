"""Language models trained over slow links at equal tokens: dense, compressed DDP, DiLoCo, SparseLoCo, MuLoCo.

    python benchmarks/slow_link_language.py --data FOLDER --steps 600 --seeds 0 1 2 --out ROWS
    python benchmarks/slow_link_language.py --data FOLDER --size 19M --links 100Mb/s 1Gb/s --steps 30 --out ROWS
    python benchmarks/slow_link_language.py --out ROWS --draw PICTURE

ROWS is benchmarks/results/slow_link_language.csv, FOLDER has the books. Every case of a seed trains the same network from the
same weights on the same bytes of the same books, with the same rate of the inner optimizer, and ends with the loss on the last
tenth of the books. Compute is real: all hosts share this machine's processors, and so do the workers that exchange nothing,
whose step the predictions know beside the link's nominal rate and the bytes that a method sends. No rate, interval or density
was chosen in sight of a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lab_cases
from rows import append, read

from paceline.strategy.local.local_recipes import local_recipe
from paceline.workload import Workload

COLUMNS = (
    "network",
    "parameters",
    "hosts",
    "link",
    "method",
    "compression",
    "sync_every",
    "seed",
    "steps",
    "tokens",
    "compute_s",
    "step_s",
    "step_low_s",
    "step_high_s",
    "predicted_s",
    "predicted_low_s",
    "predicted_high_s",
    "error",
    "socket_bytes",
    "metered_bytes",
    "predicted_bytes",
    "fewer_bytes",
    "train_loss",
    "loss",
)
"""Bytes are of one worker, of the whole run."""
SIZES = {
    "small": {"width": 128, "heads": 4, "blocks": 4, "context": 128},
    "19M": {"width": 512, "heads": 8, "blocks": 6, "context": 128},
}
BOOKS = ("war-and-peace", "tinyshakespeare")
NEVER = 10**6
EVERY = 15
"""Inner steps of a round, as in SparseLoCo's runs (arXiv:2508.15706)."""


def cases(every: int) -> list[dict[str, Any]]:
    """Return the methods, workers that exchange nothing first."""
    alone = {"method": "alone", "compression": "dense", "local": {"sync_every": NEVER}, "steps": 2 * every}
    return [
        alone,
        {**alone, "method": "alone, Muon", "inner": "muon"},
        {"method": "dense DDP", "compression": "dense"},
        {"method": "int8 DDP", "compression": "int8"},
        {"method": "TernGrad DDP", "compression": "terngrad"},
        {"method": "Muon DDP", "compression": "dense", "inner": "muon"},
        by_recipe("DiLoCo", "diloco", every),
        {**by_recipe("DiLoCo int8", "diloco", every), "compression": "int8"},
        by_recipe("SparseLoCo", "sparseloco", every),
        by_recipe("MuLoCo", "muloco", every),
    ]


def by_recipe(method: str, name: str, every: int) -> dict[str, Any]:
    """Return a published recipe of local steps as a case, with another interval."""
    recipe = local_recipe(name)
    outer = ("outer_lr", "outer_momentum", "residual_decay")
    local = {"sync_every": every, **{name: recipe.choices[name] for name in outer if name in recipe.choices}}
    case = {"method": method, "compression": recipe.choices["compression"], "local": local, "inner": recipe.optimizer}
    return {**case, "options": dict(recipe.choices.get("options", {}))}


def measure(link: str, seed: int, o: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one link and seed."""
    size = SIZES[o.size]
    import torch
    from slow_link_rank import network

    example = torch.zeros(1, size["context"], dtype=torch.int64, device="meta")
    table = Workload.trace(lambda: network(size), example, name=f"transformer {o.size}", sample="sequence", source="benchmarks")
    spec = {
        "data": str(o.data.resolve()),
        "books": BOOKS,
        "size": size,
        "batch": o.batch,
        "steps": o.steps,
        "lr": o.lr,
        "seed": seed,
    }
    asked = [c for c in cases(o.every) if not c["method"].startswith("alone") and (not o.methods or c["method"] in o.methods)]
    inner = {c.get("inner", "adamw") for c in asked}
    known = [c for c in cases(o.every) if c["method"].startswith("alone") and c.get("inner", "adamw") in inner]
    with lab_cases.cluster(o.hosts, link) as on:
        outcomes = lab_cases.run(on, spec, [*known, *asked], timeout=o.timeout, script="slow_link_rank.py")
    alone = {c.get("inner", "adamw"): c["step_s"] for c in outcomes if c["method"].startswith("alone")}
    dense = next((c["metered_bytes"] for c in outcomes if c["method"] == "dense DDP"), 0)
    return [row(c, link, seed, alone, dense, table, o) for c in outcomes if not c["method"].startswith("alone")]


def row(
    case: Mapping[str, Any],
    link: str,
    seed: int,
    alone: Mapping[str, float],
    dense: int,
    table: Workload,
    o: argparse.Namespace,
) -> dict[str, Any]:
    """Return the row of one case and its prediction."""
    compute = alone[case.get("inner", "adamw")]
    nominal = "100Gb/s" if link == "loopback" else link
    guess = lab_cases.predicted(table, o.hosts, nominal, case, compute, 0.0, overlap=not case.get("local"))
    found = {
        "network": o.size,
        "parameters": table.num_parameters,
        "hosts": o.hosts,
        "link": link,
        **{n: case[n] for n in ("method", "compression", "steps", "step_s", "step_low_s", "step_high_s")},
        "sync_every": case.get("local", {}).get("sync_every", 1),
        "seed": seed,
        "tokens": case["steps"] * o.batch * o.hosts * SIZES[o.size]["context"],
        "compute_s": compute,
        "predicted_bytes": guess.wire_bytes_per_device * case["steps"],
        **{n: case[n] for n in ("metered_bytes", "train_loss", "loss")},
        "fewer_bytes": round(dense / case["metered_bytes"], 1) if dense else "",
    }
    if link != "loopback":  # whose rate nobody knows, and which carries the bytes of all workers
        found |= {
            "socket_bytes": case["socket_bytes"],
            "predicted_s": guess.step_time_s,
            "predicted_low_s": guess.low_s,
            "predicted_high_s": guess.high_s,
            "error": guess.step_time_s / case["step_s"] - 1,
        }
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}


def show(found: Mapping[str, Any]) -> None:
    """Print one line of the table."""
    predicted = f", predicted {found['predicted_s']:.4g} s" if "predicted_s" in found else ""
    print(
        f"  {found['network']:6} {found['link']:9} seed {found['seed']} {found['method']:13} loss {found['loss']:.4f};"
        f" {found['metered_bytes']:,} bytes a worker (dense DDP: {found['fewer_bytes']} times as many),"
        f" predicted {found['predicted_bytes']:,}; step {found['step_s']:.4g} s{predicted}",
        flush=True,
    )


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the loss at equal tokens against the bytes of a worker; a mark a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    mine = [r for r in rows if r["link"] == "loopback"]
    figure, axis = pyplot.subplots(figsize=(6.4, 4))
    for number, method in enumerate(dict.fromkeys(r["method"] for r in mine)):
        own = [r for r in mine if r["method"] == method]
        axis.plot([r["metered_bytes"] / 1e6 for r in own], [r["loss"] for r in own], "o", color=f"C{number}", label=method)
    axis.set_xscale("log")
    axis.set_xlabel("MB that a worker sends in the run")
    axis.set_ylabel("loss on held-out text, nats a byte")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)
    first = mine[0]
    sizes = f"{first['parameters'] / 1e6:.2g} M parameters, {first['tokens'] / 1e6:.2g} M tokens of two books"
    axis.set_title(f"{sizes}, {first['hosts']} workers", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with the books")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", nargs="+", default=["loopback"])
    parser.add_argument("--methods", nargs="+", help="default: all")
    parser.add_argument("--every", type=int, default=EVERY, help="inner steps of a round")
    parser.add_argument("--steps", type=int, default=600, help="of every case; a multiple of --every")
    parser.add_argument("--batch", type=int, default=4, help="windows of a worker's step")
    parser.add_argument("--lr", type=float, default=1e-3, help="of the inner optimizer, in every case")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--timeout", type=float, default=14400, help="seconds for all cases of a link and seed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the rows of --out")
    o = parser.parse_args()
    if o.draw:
        picture(read(o.out), o.draw)
        return
    if o.data is None:
        parser.error("--data is missing: the folder with the books")
    if o.steps % o.every or o.steps < 2 * o.every:
        parser.error("--steps must be a multiple of --every, two rounds at least")
    for link in map(lab_cases.actual, o.links):
        for seed in o.seeds:
            for found in measure(link, seed, o):
                append(o.out, COLUMNS, found)
                show(found)


if __name__ == "__main__":
    main()
