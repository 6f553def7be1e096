"""One rank of an emulated accelerator: paced compute, replayed gradients, real exchange; ``lab_cases.py`` starts it.

The network is a stack of parameters as large as the real one's, under stock DDP. Its forward and backward pass sleep for the
given seconds instead of computing. The backward pass hands over values that were there beforehand: recorded in a training of
the network (``recorded_gradients.py``), or drawn (``made_up``): of a gradient's size, and from no training. Everything from
there on is real: DDP's buckets, the communication hook, the codec, the sockets. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from rank_cases import run_cases
from recorded_gradients import Recording
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import paceline

TILE = 1 << 20  # elements of made-up gradient, repeated


class _Layer(torch.autograd.Function):
    """Passes its input on; its backward pass sleeps and returns the gradient made for the parameter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        if ctx.seconds:
            time.sleep(ctx.seconds)
        return grad, ctx.saved_tensors[0].detach(), None


class Paced(nn.Module):
    """Parameters of the given shapes that hold their own gradients.

    Args:
        values: of a gradient: one tile for all parameters, or a 1-D tensor for each; repeated where the parameter is larger.
        backward_s: seconds of each tensor's backward pass; with one entry all of it comes before the first gradient.
    """

    def __init__(self, shapes: list[list[int]], backward_s: list[float], forward_s: float, values: list[torch.Tensor]) -> None:
        super().__init__()
        self.forward_s = forward_s
        self.backward_s = backward_s if len(backward_s) == len(shapes) else [0.0] * (len(shapes) - 1) + backward_s
        for i, shape in enumerate(shapes):
            count = int(np.prod(shape))
            own = values[i] if len(values) == len(shapes) else values[0].roll(-((i * 7919) % TILE))
            self.register_parameter(f"p{i}", nn.Parameter(own.repeat(-(-count // len(own)))[:count].reshape(shape).clone()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep, then build the graph."""
        time.sleep(self.forward_s)
        for weight, seconds in zip(self.parameters(), self.backward_s, strict=True):
            x = _Layer.apply(x, weight, seconds)
        return x


def gradients(kind: dict[str, Any], rank: int) -> list[torch.Tensor]:
    """Those recorded in ``{"recorded": FOLDER}``, one tensor a parameter; else one tile that is made up."""
    return Recording(Path(kind["recorded"])).of(rank) if "recorded" in kind else [made_up(kind, rank)]


def made_up(kind: dict[str, Any], rank: int) -> torch.Tensor:
    """A tile of gradient: ``{"shares": [0-bit, 8, 16, 32]}`` after Table III of INCEPTIONN, else Student-t noise.

    The noise has 4 degrees of freedom and two equal parts: one common to all workers, one of each worker's own. With shares
    the workers agree on magnitudes but for 7 %, and on all signs. Neither comes from a training.
    """
    common, own = np.random.default_rng(7), np.random.default_rng(1000 + rank)
    if "shares" not in kind:
        base = common.standard_t(4, TILE) * 1e-3
        return torch.from_numpy((base + own.standard_t(4, TILE) * 1e-3).astype(np.float32))
    exponents = {0: (-24.0, -10.6), 1: (-9.9, -5.2), 2: (-4.9, -1.5), 3: (0.1, 0.2)}
    shares = np.asarray(kind["shares"], float)
    classes = common.choice(4, TILE, p=shares / shares.sum())
    low, high = (np.array([exponents[c][k] for c in range(4)])[classes] for k in (0, 1))
    size = np.exp2(low + (high - low) * common.random(TILE)) * np.exp2(own.uniform(-0.1, 0.1, TILE))
    return torch.from_numpy((size * common.choice([-1.0, 1.0], TILE)).astype(np.float32))


def wrap(model: Paced, case: dict[str, Any]) -> tuple[DistributedDataParallel, Any]:
    """The model under DDP with the case's hook; ``torch:NAME`` is PyTorch's own."""
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    name = case["compression"]
    if name == "torch:dense":
        return ddp, None
    if name in ("torch:fp16", "torch:bf16"):
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook if name.endswith("fp16") else _bf16_hook)
        return ddp, None
    options = case.get("options", {})
    place = {"codec_at": case["codec_at"]} if "codec_at" in case else {}
    return ddp, paceline.attach(ddp, name, exchange=case.get("exchange", ""), check_every=0, **place, **options)


def _bf16_hook(state, bucket):  # type: ignore[no-untyped-def]
    """PyTorch's bf16 hook refuses CPUs; this does what it does: cast, all-reduce, cast back."""
    small = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def run(case: dict[str, Any], spec: dict[str, Any], values: list[torch.Tensor]) -> dict[str, Any]:
    """Warm-up steps and then timed ones; seconds of the slowest rank."""
    ddp, hook = wrap(Paced(spec["shapes"], spec["backward_s"], spec["forward_s"], values), case)
    compute = spec["forward_s"] + sum(spec["backward_s"])
    x = torch.zeros(1, requires_grad=True)
    steps: list[float] = []
    exposed: list[float] = []
    codec: list[float] = []
    sent = metered = 0
    warm = spec["warm"] if case["compression"] == "auto" else min(3, spec["warm"])
    for number in range(warm + spec["steps"]):
        dist.barrier()
        before, start = sent_bytes(), time.perf_counter()
        if hook is not None:
            hook.meter.begin_step()
        ddp.zero_grad()  # then DDP takes each gradient over with one copy into its bucket, as from an accelerator
        ddp(x).backward(torch.ones(1))
        finished = time.perf_counter() - start
        time.sleep(spec["update_s"])
        slowest = torch.tensor([time.perf_counter() - start, finished - compute], dtype=torch.float64)
        after = sent_bytes()
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if number >= warm:
            steps.append(float(slowest[0]))
            exposed.append(float(slowest[1]))
            codec.append(hook.meter.seconds("codec") if hook is not None else 0.0)
            sent, metered = max(sent, after - before), hook.meter.sent_bytes if hook is not None else 0
    busiest = torch.tensor([sent, metered], dtype=torch.int64)
    dist.all_reduce(busiest, op=dist.ReduceOp.MAX)
    return {
        **case,
        "step_s": statistics.median(steps),
        "step_low_s": min(steps),
        "step_high_s": max(steps),
        "exchange_s": statistics.median(exposed),
        "codec_s": statistics.median(codec),
        "way": str(hook.gradient_exchange) if hook is not None else "",
        "steps": len(steps),
        "socket_bytes": int(busiest[0]),
        "metered_bytes": int(busiest[1]),
    }


def main() -> None:
    """Run every case of the specification file on this rank's gradients."""
    run_cases(run, lambda spec: gradients(spec["gradient"], dist.get_rank()))


if __name__ == "__main__":
    main()
