"""PowerSGD (Vogels et al. 2019) by PyTorch's own hook, behind the same ``attach()``: what it lacks is a state that resumes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy.compression import low_rank_factors
from paceline.training.background import Background
from paceline.training.meter import Meter
from paceline.training.sample import Sample
from paceline.training.tensors import trained
from paceline.training.ways import Way

_log = logging.getLogger("paceline")

_NOTHING = 1e-30  # added to a column's norm: changes no other than that of zeros, which then is no divisor of zero
_SEED = 1e-15  # of a direction: vanishes beside any gradient's, and its square is no zero in fp32
START = 2  # the first step that compresses: DDP rebuilds its buckets after the first


class PowerSGD:
    """Stands where ``Hook`` stands for the other compressions; attributes as there."""

    def __init__(self, model: DistributedDataParallel, way: Way, *, seed: int) -> None:
        self.way, self.seed, self.step = way, seed, 0
        self.rank = int(way.compression.option("rank"))
        self.meter, self.sample = Meter(dist.get_rank(model.process_group)), Sample()
        self.tensors = list(trained(model.module).values())
        self.dense = dict(way.compression.dense(self.tensors))
        self._device = next(model.module.parameters()).device
        self._workers = dist.get_world_size(model.process_group)
        group = dist.new_group(dist.get_process_group_ranks(model.process_group), use_local_synchronization=True)
        self._work = Background(self, "paceline-powersgd")
        self.state = powerSGD_hook.PowerSGDState(
            group,
            matrix_approximation_rank=self.rank,
            start_powerSGD_iter=START,
            orthogonalization_epsilon=_NOTHING,
            random_seed=seed % 2**32,  # NumPy takes no more
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
        self._work.submit(lambda: self._finish(bucket, buffer, future))
        return future

    def _finish(self, bucket: Any, buffer: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        try:
            start, last, elements = self.meter.now(), bucket.is_last(), 0
            for p in bucket.parameters():
                factors = low_rank_factors(tuple(p.shape), self.rank) if self.state.iter >= START else None
                elements += sum(factors) if factors else p.numel()
            self.meter.sent_bytes += -(-2 * (self._workers - 1) * 4 * elements // self._workers)
            self._revive(bucket.index())
            value = powerSGD_hook.powerSGD_hook(self.state, bucket).wait()
            buffer.copy_(value if isinstance(value, torch.Tensor) else value[0])
            self.meter.add("powersgd", "network", start)
            self.step += last
        except Exception as error:
            _log.error("rank %d: the exchange failed: %s: %s", self.meter.rank, type(error).__name__, error)
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(buffer)

    def _revive(self, index: int) -> None:
        """Give factors of zero a direction again, the same on every rank: a gradient of zeros leaves none to start from."""
        q = self.state.q_memory_dict.get(index)
        if q is not None and bool((q == 0).any()):
            noise = torch.randn(q.shape, generator=torch.Generator().manual_seed(self.step)).mul_(_SEED)
            q.copy_(torch.where(q == 0, noise.to(q), q))

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
        """Go on where ``state_dict`` was taken; arguments and errors as ``Hook.load_state_dict``.

        PyTorch's hook keeps residuals by bucket: the model must be cut into the same ones.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        by_rank = {s["rank"]: s for s in states if s["compression"] == "powersgd"}
        before = states[0]["workers"] if by_rank else 0
        own = by_rank.get(self.meter.rank) if before == self._workers else None
        if own is None:
            if not before or sorted(by_rank) != list(range(before)):
                raise UserError("the state is of another compression, or not of all ranks", "give the states of every rank")
            total = {i: sum(s["error_dict"][i].double() for s in states) for i in by_rank[0]["error_dict"]}
            own = {**by_rank[0], "error_dict": {i: (t / self._workers).float() for i, t in total.items()}}
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            setattr(self.state, name, {i: t.to(self._device).clone() for i, t in own[name].items()})
        self.state.iter, self.step, self.seed = own["iter"], own["step"], own["seed"]
        self.state.rng.set_state(own["rng"])
