"""One rank of a language model's training over a slow link. ``slow_link_language.py`` starts it on every host.

The network, the text, the gradients, the codecs, the sockets and the compute are real. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from language_tasks import FILES, TransformerModel
from link_bytes import sent_bytes
from rank_cases import run_cases
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.strategy import GradientExchange

LETTERS = 256
"""Vocabulary: a token is a byte of the text."""
NEVER = 10**6
"""Steps between exchanges of a worker that trains alone."""
HELD_OUT = 64
"""Windows of the last tenth of the text whose loss is measured."""


def network(size: dict[str, int]) -> TransformerModel:
    """Return a transformer of GPT-2's form. ``size``: width, heads, blocks, context."""
    width, heads = size["width"], size["heads"]
    return TransformerModel(
        LETTERS, width, width // heads, [(heads, 4 * width)] * size["blocks"], dropout=0.0, context=size["context"]
    )


def text(spec: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the bytes of the books that train, (tokens,), and those that are held out, the last tenth of each."""
    books = [gzip.decompress((Path(spec["data"]) / FILES[name]).read_bytes()) for name in spec["books"]]
    parts = [torch.frombuffer(bytearray(book), dtype=torch.uint8).long() for book in books]
    return torch.cat([p[: len(p) * 9 // 10] for p in parts]), torch.cat([p[len(p) * 9 // 10 :] for p in parts])


def windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return windows and the tokens that follow, (windows, context) each."""
    both = torch.stack([tokens[s : s + context + 1] for s in starts.tolist()])
    return both[:, :-1], both[:, 1:]


def batches(tokens: Tensor, spec: dict[str, Any], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's windows of every step: the same for all cases of a seed."""
    generator = torch.Generator().manual_seed(1000 * spec["seed"] + dist.get_rank())
    context = spec["size"]["context"]
    for _ in range(steps):
        yield windows(tokens, torch.randint(len(tokens) - context - 1, (spec["batch"],), generator=generator), context)


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate in a step: five per cent of warm-up, then a cosine down to a tenth."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def inner_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of each worker: AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""
    if name == "muon":
        return paceline.Muon(model, lr=lr)
    return torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.1)


def run(case: dict[str, Any], spec: dict[str, Any], prepared: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Train from the same weights on the same windows; seconds, bytes and the loss on text that is held out."""
    torch.manual_seed(spec["seed"])
    train, held_out = prepared
    model = network(spec["size"])
    exchange = GradientExchange(case["compression"], case.get("exchange", ""), options=case.get("options", {}))
    local = case.get("local", {})
    every, steps = local.get("sync_every", 1), case.get("steps", spec["steps"])
    sync = hook = None
    trained: nn.Module = model
    if local:
        sync = paceline.attach_local(model, exchange, seed=spec["seed"], **local)
    else:
        trained = DistributedDataParallel(model)
        hook = paceline.attach(trained, exchange, seed=spec["seed"])
    optimizer = inner_optimizer(case.get("inner", "adamw"), model, spec["lr"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    ends, metered, losses = [0.0], [0], []
    dist.barrier()
    before, start = sent_bytes(), time.perf_counter()
    for x, y in batches(train, spec, steps):
        if hook is not None:
            hook.meter.begin_step()
        loss = cross_entropy(trained(x)[0].flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ended = sync is not None and sync.step()
        source = hook or (sync if ended else None)
        metered.append(source.meter.sent_bytes if source is not None else 0)
        ends.append(time.perf_counter() - start)
        losses.append(float(loss.detach()))
    sent = sent_bytes() - before
    # The first round warms up: pages, buffers, connections.
    width = 1 if every == NEVER else every
    skipped = width if len(ends) > 2 * width else 0
    rounds = [(b - a) / width for a, b in pairwise(ends[skipped::width])]
    figures = torch.tensor([statistics.median(rounds), sent, sum(metered)], dtype=torch.float64)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    if sync is not None and every != NEVER:
        sync.finish()
    shared = sync.shared_weights() if sync is not None and every != NEVER else contextlib.nullcontext()
    with shared, torch.no_grad():
        starts = torch.linspace(0, len(held_out) - spec["size"]["context"] - 2, HELD_OUT).long()
        x, y = windows(held_out, starts, spec["size"]["context"])
        model.eval()
        found = float(cross_entropy(model(x)[0].flatten(0, 1), y.flatten()))
    return {
        **case,
        "step_s": float(figures[0]),
        "step_low_s": min(rounds),
        "step_high_s": max(rounds),
        "socket_bytes": int(figures[1]),
        "metered_bytes": int(figures[2]),
        "train_loss": statistics.fmean(losses[-max(1, len(losses) // 20) :]),
        "loss": found,
        "steps": len(losses),
    }


if __name__ == "__main__":
    run_cases(run, text)
