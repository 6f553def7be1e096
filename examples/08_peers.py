"""DiLoCo between sites that come and go: each site runs this script, and a run goes on while any of them is there.

python -m paceline.training.attach.peers site-a:29400
torchrun --standalone --nproc-per-node 1 examples/08_peers.py site-a:29400

The first sites wait for each other: 2, or the number behind the address. Others may come until the run ends.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

import paceline
from paceline.training.attach.peers.peer_store import host_store


def main() -> None:
    """Train a small network on made-up samples; each site has its own."""
    dist.init_process_group("gloo")
    alone = len(sys.argv) < 2
    store = host_store("127.0.0.1:0") if alone else sys.argv[1]
    min_peers = int(sys.argv[2]) if len(sys.argv) > 2 else 1 if alone else 2
    torch.manual_seed(0)
    teacher = nn.Linear(20, 3)
    torch.seed()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    peers = paceline.Peers(store, min_peers=min_peers)
    sync = paceline.attach_local(model, "int8", sync_every=20, round_deadline_s=10.0, peers=peers)
    sync.join()  # the model now has the weights of the sites that are there

    while sync.outer_step < (10 if alone else 300):  # the same end for all, whenever they came
        x = torch.randn(32, 20)
        loss = nn.functional.cross_entropy(model(x), teacher(x).argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sync.step() and dist.get_rank() == 0:
            print(f"outer step {sync.outer_step}: loss {loss:.3f}, with {len(sync.members)} site(s)")
    sync.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except paceline.UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
