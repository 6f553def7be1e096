"""One worker of a training to convergence. ``accuracy_to_convergence.py`` starts it; rank 0 writes the result, as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from accuracy_tasks import Recipe, Task, task_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import paceline
from paceline import codecs


def options_of(compression: str, recipe: Recipe, steps: int) -> dict[str, float]:
    """Those of a user who follows the publications: both become sparse or low in rank after a tenth of the steps."""
    if compression == "topk":
        return {"momentum": recipe.momentum, "warmup_steps": steps // 10}
    return {"start_iter": max(steps // 10, 2)} if compression == "powersgd" else {}


def corrected(hook: Any, options: dict[str, float]) -> set[str]:
    """Tensors whose momentum the hook corrects. It has none for those that it leaves dense: they keep the optimizer's."""
    return {tensor.name for tensor in hook.tensors} - set(hook.dense) if "momentum" in options else set()


def train(task: Task, compression: str) -> dict[str, Any]:
    """From first to last step. Raises RuntimeError when the replicas do not hold the same numbers in the end."""
    recipe, rank = task.recipe, task.rank
    model = task.model()
    flops = flops_of_sample(task, model)
    trained = DistributedDataParallel(model)
    options = options_of(compression, recipe, task.steps)
    hook = paceline.attach(trained, compression, seed=task.seed, **options)
    optimizer = task.optimizer(task.parameter_groups(model, corrected(hook, options)))
    rates = [group["lr"] for group in optimizer.param_groups]
    curve, losses, sent, step = list[float](), list[float](), 0, 0
    begin, processor = time.perf_counter(), time.process_time()
    for epoch in range(recipe.epochs):
        model.train()
        loss = torch.zeros(())
        for batch in task.batches(epoch):
            share = task.share(step)
            hook.meter.begin_step()
            with task.autocast():
                found = task.loss(trained, batch)
            optimizer.zero_grad()
            found.backward()
            with torch.no_grad():
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * share
                    for p in group["params"]:
                        p.mul_(1 - group["decay"] * share)
            optimizer.step()
            loss += found.detach()
            sent += hook.meter.sent_bytes
            step += 1
        curve.append(judged(task, model, "tune"))
        losses.append(round(float(loss) / task.epoch_steps, 4))
        if rank == 0:
            print(f"  epoch {epoch + 1}: {curve[-1]}, loss {losses[-1]}", file=sys.stderr, flush=True)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - processor
    test = judged(task, model, "test")
    told: list[Any] = [None] * task.workers
    dist.all_gather_object(told, (digest(model), sent, cpu))
    if len({each[0] for each in told}) != 1:
        raise RuntimeError(f"{compression}, seed {task.seed}: the replicas differ")
    return {
        "data": task.data,
        "measure": task.measure,
        "options": json.dumps(options),
        "exchange": hook.gradient_exchange.exchange.name,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "tflop": round(flops * task.steps * recipe.batch / 1e12, 1),
        "steps": task.steps,
        "nonfinite_steps": hook.meter.nonfinite_steps,
        "sent_bytes": max(each[1] for each in told),
        "final": curve[-1],
        "best": (min if task.least_is_best else max)(curve),
        "test": test,
        "curve": json.dumps(curve),
        "losses": json.dumps(losses),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(max(each[2] for each in told), 1),
        "digest": told[0][0],
    }


def flops_of_sample(task: Task, model: nn.Module) -> float:
    """Of one forward and backward pass, multiplications and additions."""
    x, y = next(task.batches(0))
    batch = x[:8], y[:8]
    with FlopCounterMode(display=False) as counter:
        task.loss(model, batch).backward()
    model.zero_grad()
    return counter.get_total_flops() / len(batch[1])


@torch.no_grad()
def judged(task: Task, model: nn.Module, part: str) -> float:
    """The measure over all workers' shares of a part; buffers are rank 0's."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    model.eval()
    with task.autocast():
        sums = torch.tensor(task.sums(model, part), dtype=torch.float64)
    dist.all_reduce(sums)
    return task.score(*sums.tolist())


def digest(model: nn.Module) -> str:
    """Of all that a replica holds."""
    sha = hashlib.sha256()
    for value in model.state_dict().values():
        sha.update(value.contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def main() -> None:
    """``accuracy_rank.py SPECIFICATION RANK``."""
    spec, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)
    codecs.set_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{spec['join']}", rank=rank, world_size=spec["workers"])
    recipe = Recipe(**{**spec["recipe"], "widths": tuple(spec["recipe"]["widths"])})
    folder = Path(spec["folder"]) if spec["folder"] else None
    result = train(task_of(recipe, spec["seed"], rank, spec["workers"], folder), spec["compression"])
    if rank == 0:
        Path(spec["result"]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
