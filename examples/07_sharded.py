"""A model that FSDP2 has sharded, with gradients in 8-bit integers, stopped and resumed with torch.distributed.checkpoint.

torchrun --standalone --nproc-per-node 2 examples/07_sharded.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

import paceline


def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A small network in three units, its optimizer, and the hook that exchanges its gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2)), nn.Linear(64, 3))
    for block in (model[0], model[1], model):
        fully_shard(block)
    hook = paceline.attach(model, "int8")
    return model, torch.optim.SGD(model.parameters(), lr=0.1), hook


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> float:
    """The loss of the last of these steps, on samples of this rank's own."""
    loss = torch.zeros(())
    for step in steps:
        draws = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
        x = torch.randn(32, 64, generator=draws)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


def main() -> None:
    """Train, save, and train on from what was saved: both end alike."""
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)

    model, optimizer, hook = build()
    train(model, optimizer, range(30))
    dcp.save({"model": get_model_state_dict(model), "exchange": hook}, checkpoint_id=folder[0])
    loss = train(model, optimizer, range(30, 60))

    model, optimizer, hook = build()
    state = {"model": get_model_state_dict(model), "exchange": hook}
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(model, state["model"])
    again = train(model, optimizer, range(30, 60))
    if dist.get_rank() == 0:
        print(f"loss {loss:.3f}, {hook.meter.sent_bytes:,} bytes; after a restart {again:.3f}: the same {loss == again}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
