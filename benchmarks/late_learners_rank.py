"""One peer of an emulated run with late learners: paced training, real exchanges. ``late_learners.py`` starts it on each host.

A step is a sleep and a small change of the weights. The rest is real: the store, the members of each outer step, the codec, the
sockets, the weights that a late peer fetches. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from rank_cases import run_cases
from torch import nn

import paceline
from paceline.strategy import GradientExchange


def run(case: dict[str, Any], spec: dict[str, Any], prepared: Any) -> dict[str, Any]:
    """Train for the given seconds with peers of unequal pace. Return seconds of a step, shares and bytes over all peers."""
    del prepared
    rank, every = dist.get_rank(), case["local"]["sync_every"]
    model = nn.Linear(spec["width"], spec["width"], bias=False)
    site = dist.new_group([rank], use_local_synchronization=True)
    store = dist.distributed_c10d._get_default_store()
    peers = paceline.Peers(store, run=case["name"], name=f"site {rank}")
    exchange = GradientExchange(case["compression"], options=case.get("options", {}))
    sync: Any = paceline.attach_local(
        model, exchange, process_group=site, peers=peers, timeout_s=60, check_every=0, **case["local"]
    )
    pace = spec["step_s"] * case["times"][rank]
    sync.join()
    dist.barrier()
    ends: list[float] = []
    members = taken = 0
    start = time.perf_counter()
    counts = (0, 0, 0)
    while (now := time.perf_counter() - start) < spec["seconds"]:
        if now < spec["warm_s"] or not ends:  # counting begins with the end of a round
            ends, members, taken = [], 0, 0
            counts = sync.left_behind, sync.dropped, sent_bytes()
        for _ in range(every):
            time.sleep(pace)
            with torch.no_grad():
                model.weight.add_(1e-4)
            took = sync.step()
        ends.append(time.perf_counter() - start)
        if len(ends) == 1:
            counts = sync.left_behind, sync.dropped, sent_bytes()
        elif took:
            taken += 1
            members += len(sync.members)
    rounds = len(ends) - 1
    own = {
        "rounds_per_s": rounds / (ends[-1] - ends[0]),
        "rounds": rounds,
        "left_behind": sync.left_behind - counts[0],
        "dropped": sync.dropped - counts[1],
        "sent": sent_bytes() - counts[2],
        "taken": taken,
        "members": members,
    }
    sync.leave()
    found: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, own)
    dist.barrier()
    total = {name: sum(of[name] for of in found) for name in own}
    return {
        **case,
        "step_s": len(found) / total["rounds_per_s"] / every,
        "counted": 1 - total["dropped"] / total["rounds"],
        "fetches": total["left_behind"] / total["rounds"],
        "members": total["members"] / max(1, total["taken"]),
        "socket_bytes": total["sent"] / total["rounds"],
        "rounds": total["rounds"],
    }


if __name__ == "__main__":
    run_cases(run, lambda spec: None)
