"""One rank of ``step_processor.py``: the paced steps of ``paced.py``, and the processor time that they take.

Wall time depends on what else a machine runs; processor time much less. A thread's time is the kernel's own count, so the
threads of the engine are seen too. A stage is what a span of the hook's meter encloses, on its thread.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from link_bytes import sent_bytes
from paced import Paced, gradients, wrap
from rank_cases import run_cases

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Stages:
    """Processor seconds of a meter's spans by name, on the threads that ran them."""

    def __init__(self, meter: Any) -> None:
        self.seconds: Counter[str] = Counter()
        self._span = meter.span
        meter.span = self._timed

    @contextmanager
    def _timed(self, name: str, lane: str) -> Iterator[None]:
        with self._span(name, lane):
            start = time.thread_time()
            try:
                yield
            finally:
                self.seconds[name] += time.thread_time() - start


def thread_seconds() -> tuple[float, float, float]:
    """User and system seconds of this process, and the system seconds of the threads that the engine's sockets have."""
    user = system = engine = 0.0
    for task in Path("/proc/self/task").iterdir():
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        own, kernel = int(fields[11]) * TICK_S, int(fields[12]) * TICK_S
        user, system = user + own, system + kernel
        engine += kernel if "gloo" in (task / "comm").read_text() else 0.0
    return user, system, engine


def run(case: dict[str, Any], spec: dict[str, Any], values: list[torch.Tensor]) -> dict[str, Any]:
    """Warm steps and then counted ones; seconds a step and rank, the mean over both."""
    ddp, hook = wrap(Paced(spec["shapes"], spec["backward_s"], spec["forward_s"], values), case)
    stages = None if hook is None else Stages(hook.meter)
    x, cleared, sent = torch.zeros(1, requires_grad=True), 0.0, 0
    walls: list[float] = []
    warm = min(3, spec["warm"])
    for number in range(warm + spec["steps"]):
        dist.barrier()
        if number == warm:
            begun, before, cleared = thread_seconds(), sent_bytes(), 0.0
            if stages is not None:
                stages.seconds.clear()
        if hook is not None:
            hook.meter.begin_step()
        wall, start = time.perf_counter(), time.thread_time()
        ddp.zero_grad()
        cleared += time.thread_time() - start
        ddp(x).backward(torch.ones(1))
        walls.append(time.perf_counter() - wall)
    ended, sent = thread_seconds(), sent_bytes() - before
    names = [] if stages is None else sorted(stages.seconds)
    own = [b - a for a, b in zip(begun, ended, strict=True)]
    mine = [*own, cleared, sent / 1e6, *(stages.seconds[name] for name in names if stages is not None)]
    total = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(total)
    user, system, engine, zeroed, sent_mb, *by_stage = (total / spec["steps"] / dist.get_world_size()).tolist()
    return {
        **case,
        "processor_s": user + system,
        "user_s": user,
        "system_s": system,
        "engine_system_s": engine,
        "zero_grad_s": zeroed,
        "stages": dict(zip(names, by_stage, strict=True)),
        "socket_mb": sent_mb,
        "wall_s": sorted(walls[warm:])[len(walls[warm:]) // 2],
    }


def main() -> None:
    """Run every case of the specification file on this rank's gradients."""
    run_cases(run, lambda spec: gradients(spec["gradient"], dist.get_rank()))


if __name__ == "__main__":
    main()
