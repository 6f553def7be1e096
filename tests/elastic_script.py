"""A user's training script: an FSDP2 model with ``attach``, a checkpoint a step, and torchrun to start it again.

``torchrun … elastic_script.py FOLDER`` trains ``STEPS`` steps. A rank with ``DIES`` in its environment says its process number
in step ``LAST`` and waits to be killed. What the ranks owe together is written down with each checkpoint, and as it is loaded.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from paceline import attach
from sharded_models import loss, sharded, weights
from sharded_states import owed

LAST, STEPS = 3, 6


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded()
    hook = attach(model, "topk", density=0.05, momentum=0.5, min_elements=10, timeout_s=10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    done = sorted(folder.glob("step-*/.metadata"))
    if done:
        path = done[-1].parent
        dcp.load({"model": model.state_dict()}, checkpoint_id=path)
        hook.load_checkpoint(path)
        note(folder / f"loaded-{path.name}", ranks, owed(hook), weights(model))
    while hook.step < STEPS:
        if "DIES" in os.environ and hook.step == LAST:
            (folder / "dies").write_text(str(os.getpid()))
            time.sleep(100)
        optimizer.zero_grad()
        loss(model, rank, hook.step).backward()
        optimizer.step()
        name = f"step-{hook.step}"
        note(folder / f"saved-{name}", ranks, owed(hook), weights(model))
        dcp.save({"model": model.state_dict(), "exchange": hook}, checkpoint_id=folder / name)
    dist.barrier()


def note(path: Path, ranks: int, residuals: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
    """What all ranks have together."""
    if dist.get_rank() == 0:
        torch.save({"ranks": ranks, "owed": residuals, "weights": whole}, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
