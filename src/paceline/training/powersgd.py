"""PowerSGD (Vogels et al. 2019) by PyTorch's own hook, behind the same ``attach()``: what it lacks is a state that resumes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy.compression import low_rank_factors
from paceline.training.meter import Meter
from paceline.training.sample import Sample
from paceline.training.tensors import trained
from paceline.training.ways import Way

_log = logging.getLogger("paceline")

START = 2  # the first step that compresses: DDP rebuilds its buckets after the first


class PowerSGD:
    """Stands where ``Hook`` stands for the other compressions; attributes as there."""

    def __init__(self, model: DistributedDataParallel, way: Way, *, seed: int) -> None:
        self.way, self.seed, self.step = way, seed, 0
        self.rank = int(way.compression.option("rank"))
        self.meter, self.sample = Meter(dist.get_rank(model.process_group)), Sample()
        self.tensors = list(trained(model.module).values())
        self.dense = dict(way.compression.dense(self.tensors))
        self._workers = dist.get_world_size(model.process_group)
        group = dist.new_group(dist.get_process_group_ranks(model.process_group), use_local_synchronization=True)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="paceline-powersgd", daemon=True).start()
        self.state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=self.rank, start_powerSGD_iter=START, random_seed=seed
        )

    def __str__(self) -> str:
        return f"{self.way.compression.title}, rank {self.rank}" + "".join(f"\n  {n}: {why}" for n, why in self.dense.items())

    def submit(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """PyTorch's hook, counted: two factors of each matrix, and the other tensors as they are.

        It issues its second collective where its first has ended, in no fixed order among buckets, which gloo answers with a
        hang. So buckets go one after another, on a thread and a group of their own.
        """
        buffer = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        self.meter.bucket_ready()
        self._work.put(lambda: self._finish(bucket, buffer, future))
        return future

    def _serve(self) -> None:
        while True:
            self._work.get()()

    def _finish(self, bucket: Any, buffer: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        try:
            start, last, elements = self.meter.now(), bucket.is_last(), 0
            for p in bucket.parameters():
                factors = low_rank_factors(tuple(p.shape), self.rank) if self.state.iter >= START else None
                elements += sum(factors) if factors else p.numel()
            self.meter.sent_bytes += -(-2 * (self._workers - 1) * 4 * elements // self._workers)
            value = powerSGD_hook.powerSGD_hook(self.state, bucket).wait()
            buffer.copy_(value if isinstance(value, torch.Tensor) else value[0])
            self.meter.add("powersgd", "network", start)
            self.step += last
        except Exception as error:
            _log.error("rank %d: the exchange failed: %s: %s", self.meter.rank, type(error).__name__, error)
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(buffer)

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Not here: PyTorch's hook works on a ``GradBucket`` alone. Raises UserError."""
        raise UserError("powersgd cannot exchange a bare gradient", "measure a whole step")

    def state_dict(self) -> dict[str, Any]:
        """Residuals, factors and position of this rank; PyTorch's hook keeps them by bucket."""
        kept = {name: dict(getattr(self.state, name)) for name in ("error_dict", "p_memory_dict", "q_memory_dict")}
        copied = {name: {i: t.detach().cpu().clone() for i, t in values.items()} for name, values in kept.items()}
        return {
            "step": self.step, "iter": self.state.iter, "seed": self.seed, "compression": "powersgd", "workers": self._workers,
            "nonfinite_steps": 0, "rank": self.meter.rank, "rng": self.state.rng.get_state(legacy=False), **copied,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where ``state_dict`` was taken, by as many ranks. Raises UserError for another number or compression."""
        states = [state] if isinstance(state, Mapping) else list(state)
        own = [s for s in states if s["compression"] == "powersgd" and s["rank"] == self.meter.rank]
        if not own or own[0]["workers"] != self._workers:
            raise UserError("the state is of another rank, compression or number of workers", "resume powersgd as it was")
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            setattr(self.state, name, {i: t.to(device).clone() for i, t in own[0][name].items()})
        self.state.iter, self.step, self.seed = own[0]["iter"], own[0]["step"], own[0]["seed"]
        self.state.rng.set_state(own[0]["rng"])
