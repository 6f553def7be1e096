"""What it costs that a NaN in the last group of a step undoes the whole step: step times with and without, as a ratio.

    python benchmarks/nonfinite_cost.py --out RESULTS/nonfinite_cost.csv

RESULTS is benchmarks/results. Ranks decide with the flags that they exchange anyway, so no collective is added. What is left is
memory traffic: residuals of all groups but the last (of all units of a sharded model) are written to a second buffer, not in
place. Steps with and without take turns on the same model and gradients, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rows import append
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.training.exchanges.gradients.error_feedback import Feedback

COLUMNS = ("workers", "gradient_mb", "compression", "steps", "in_place_ms", "held_back_ms", "ratio", "ratio_low", "ratio_high")
CASES: dict[str, dict[str, Any]] = {
    "inceptionn-scaled": {"compression": "inceptionn-scaled"},
    "sign": {"compression": "sign"},
    "topk": {"compression": "topk"},
    "topk, momentum": {"compression": "topk", "momentum": 0.9},
    "sign, sharded": {"compression": "sign", "exchange": "sharded"},
    "topk, sharded": {"compression": "topk", "exchange": "sharded"},
}
SHARDED = ", sharded"
"""How cases of FSDP2 end."""


class Switched(Feedback):
    """Error feedback that holds back as the hook says, or never."""

    allowed = True

    @property
    def holds_back(self) -> bool:  # type: ignore[override]
        """What ``compensate`` asks."""
        return self.allowed and self._asked

    @holds_back.setter
    def holds_back(self, value: bool) -> None:
        self._asked = value


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8, help="linear layers of --width^2 weights")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=30, help="of each kind")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            given = (folder, options.workers, options.layers, options.width, options.steps, name)
            mp.spawn(rank, given, nprocs=options.workers)
            seconds = torch.load(Path(folder) / "seconds.pt")
        row = summary(seconds)
        gradients = 4e-6 * options.layers * options.width**2
        about = {"workers": options.workers, "gradient_mb": round(gradients, 1), "compression": name, "steps": options.steps}
        append(options.out, COLUMNS, {**about, **row})
        print(f"{name}: {row['held_back_ms']} ms a step, {row['in_place_ms']} in place: {row['ratio']}x", flush=True)


def rank(number: int, folder: str, workers: int, layers: int, width: int, steps: int, name: str) -> None:
    """Backward passes of one rank; rank 0 leaves its times, as pairs (in place, held back)."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=workers)
    torch.manual_seed(0)
    model, switch = (of_units if name.endswith(SHARDED) else of_groups)(
        nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))), name
    )
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(number))
    pairs = []
    for _ in range(steps + 2):
        pair = []
        for held_back in (False, True):
            switch(held_back)
            model.zero_grad()
            loss = model(x).square().mean()
            dist.barrier()
            start = time.perf_counter()
            loss.backward()
            pair.append(time.perf_counter() - start)
        pairs.append(pair)
    if number == 0:
        torch.save(torch.tensor(pairs[2:]), Path(folder) / "seconds.pt")  # the first make buffers and connections
    dist.barrier()
    dist.destroy_process_group()


def of_groups(layers: nn.Module, name: str) -> tuple[nn.Module, Callable[[bool], None]]:
    """The layers in DDP, and what switches the second buffer on and off."""
    model = DistributedDataParallel(layers)
    setup = paceline.attach(model, **CASES[name], check_every=0)._setup
    feedback = Switched(setup.feedback.momentum)
    object.__setattr__(setup, "feedback", feedback)

    def switch(held_back: bool) -> None:
        feedback.allowed = held_back

    return model, switch


def of_units(layers: nn.Sequential, name: str) -> tuple[nn.Module, Callable[[bool], None]]:
    """The layers in units of FSDP2; as ``of_groups``."""
    for layer in layers:
        fully_shard(layer)
    model = fully_shard(layers)
    hook = paceline.attach(model, **CASES[name], check_every=0)
    spare: dict[Any, Any] = {}

    def switch(held_back: bool) -> None:
        for reducer in hook._reducers.values():
            if reducer.owed is not None and reducer._draft is not reducer.owed:
                spare[reducer] = reducer._draft
            reducer._draft = spare.get(reducer) if held_back else reducer.owed

    return model, switch


def summary(seconds: torch.Tensor) -> dict[str, float]:
    """Medians in ms, and the median and the quartiles of the ratio within pairs."""
    in_place, held = seconds.T.tolist()
    ratios = sorted(b / a for a, b in zip(in_place, held, strict=True))
    low, high = (statistics.quantiles(ratios, n=4)[i] for i in (0, 2)) if len(ratios) > 1 else (ratios[0], ratios[0])
    return {
        "in_place_ms": round(1e3 * statistics.median(in_place), 1),
        "held_back_ms": round(1e3 * statistics.median(held), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
    }


if __name__ == "__main__":
    main()
