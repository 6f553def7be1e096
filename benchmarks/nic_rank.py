"""One rank of ``nic_lab.py``: HDC on real digits under stock DDP, one system after the other. Rank 0 prints a JSON line a case.

Every case starts from the same weights and sees the same samples. After the steps the whole gradient is exchanged alone,
several times: that is the communication time. Bytes are those that left this host's link, headers included.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from rank_cases import run_cases
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.models.vision.hdc import hdc
from paceline.training.runs.data import Dataset


def whole_gradient(model: nn.Module) -> torch.Tensor:
    """All gradients of the last step, flat."""
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def run(case: dict[str, Any], spec: dict[str, Any], data: Dataset) -> dict[str, Any]:
    """Train, then exchange alone; medians over steps and repetitions, of the slowest rank."""
    rank, workers, each = dist.get_rank(), dist.get_world_size(), spec["batch_per_worker"]
    torch.manual_seed(0)
    model = DistributedDataParallel(hdc(), gradient_as_bucket_view=True)
    options = {k: v for k, v in case.items() if k != "label"}
    hook = paceline.attach(
        model, options.pop("compression"), check_every=1, timeout_s=600, **options.pop("options", {}), **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=spec["lr"], momentum=0.9)
    order = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(spec["seed"]))
    steps: list[float] = []
    for step in range(spec["steps"]):
        first = (step * workers + rank) * each % (len(order) - each)
        own = order[first : first + each]
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        (spec["loss_scale"] * nn.functional.cross_entropy(model(data.train_x[own]), data.train_y[own])).backward()
        for parameter in model.parameters():
            parameter.grad /= spec["loss_scale"]
        optimizer.step()
        steps.append(time.perf_counter() - start)
    with torch.no_grad():
        correct = (model.module(data.test_x).argmax(1) == data.test_y).float().mean()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    digests: list[Any] = [None] * workers
    dist.all_gather_object(digests, digest)

    exchanges, codecs, sent = [], [], []
    for _ in range(spec["repeats"] + 1):
        gradient = whole_gradient(model) * spec["loss_scale"]
        dist.barrier()
        before, start = sent_bytes(), time.perf_counter()
        hook.meter.begin_step()
        hook.exchange_now(gradient)
        exchanges.append(time.perf_counter() - start)
        codecs.append(hook.meter.seconds("codec"))
        dist.barrier()
        time.sleep(0.05)  # what the card and the token bucket still hold
        sent.append(sent_bytes() - before)
    slowest = torch.tensor([exchanges[1:], codecs[1:], sent[1:]], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    exchange_s, codec_s, link_bytes = (row.tolist() for row in slowest)
    step_s = torch.tensor(statistics.median(steps), dtype=torch.float64)
    dist.all_reduce(step_s, op=dist.ReduceOp.MAX)
    return {
        "label": case["label"],
        "steps": len(steps),
        "step_s": float(step_s),
        "exchange_s": statistics.median(exchange_s),
        "exchange_low_s": min(exchange_s),
        "exchange_high_s": max(exchange_s),
        "codec_s": statistics.median(codec_s),
        "link_bytes": statistics.median(link_bytes),
        "elements": int(whole_gradient(model).numel()),
        "test_accuracy": float(correct),
        "replicas_equal": len(set(digests)) == 1,
        "weights": digest[:16],
    }


if __name__ == "__main__":
    run_cases(run)
