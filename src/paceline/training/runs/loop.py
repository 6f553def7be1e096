"""Training loop in plain PyTorch, with measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from paceline.record import Event
from paceline.strategy import OPTIMIZERS, Strategy
from paceline.strategy.updates.batch_growth import StepPlan
from paceline.training.attach.consistency import checksum, same_weights
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.powersgd import PowerSGD
from paceline.training.attach.noise_scale import NoiseMeter
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.runs.checkpoints.random_streams import set_random_state
from paceline.training.runs.checkpoints.state_shards import without_shards
from paceline.training.runs.compute.arithmetic import Arithmetic
from paceline.training.runs.compute.compilation import uncompiled
from paceline.training.runs.data import Dataset
from paceline.training.runs.image_order import ordered
from paceline.training.runs.starting_model import mixed_seed

TEMPERATURE = 4.0
"""Temperature of distillation; Hinton et al. use 2.5 to 8 for networks of this size."""
_CHECKED_SAMPLES = 64
BAD_STEPS = 20
"""Steps in a row with a NaN or infinite loss on a rank, after which a run stops. A gradient scaler's first steps are fewer."""
_KEPT_STEPS = 64  # recent steps whose events are kept; the timeline shows the median one


@dataclass
class StepMeasurements:
    """Measurements of one rank, with one entry per step (seconds, bytes, samples of the global batch)."""

    step: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    comm: list[float] = field(default_factory=list)
    codec: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)

    def of_batch(self, batch: int) -> StepMeasurements:
        """Return the measurements of steps with this global batch, or all of them if there are none."""
        kept = [i for i, size in enumerate(self.batch) if size == batch]
        if len(kept) in (0, len(self.step)):
            return self
        return StepMeasurements(**{f.name: [getattr(self, f.name)[i] for i in kept] for f in fields(self)})

    def averaged(self, steps: int) -> StepMeasurements:
        """Return the means over rounds of this many steps, with the events of the last of each; bytes are rounded up."""
        if steps == 1 or len(self.step) < steps:
            return self
        ends = range(steps, len(self.step) + 1, steps)

        def means(values: list[float]) -> list[float]:
            return [statistics.fmean(values[end - steps : end]) for end in ends]

        sent = [-(-sum(self.sent[end - steps : end]) // steps) for end in ends]
        events = [self.events[end - 1] or self.events[-1] for end in ends]
        return StepMeasurements(means(self.step), means(self.exposed), means(self.comm), means(self.codec), sent, events)


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]],
    lr: float,
    diagnostics_every: int = 0,
    options: Mapping[str, float | str] = MappingProxyType({}),
    ranks: dist.ProcessGroup | None = None,
) -> torch.optim.Optimizer:
    """Return an optimizer: stock PyTorch's, LARS, LAMB or Muon, by default with the options in ``OPTIMIZERS``.

    Momentum is 0.9, as in the TernGrad and INCEPTIONN papers. ``diagnostics_every`` applies to LARS and LAMB, and
    ``ranks`` to Muon. Raises UserError for an unknown variant.
    """
    chosen = OPTIMIZERS[name]
    of_layers: dict[str, Any] = {"diagnostics_every": diagnostics_every} if chosen.layerwise else {}
    if chosen.orthogonal:
        of_layers = {"ranks": ranks}
    kind: Callable[..., torch.optim.Optimizer] = resolve_name(chosen.python)
    return kind(parameters, lr=lr, **{**chosen.options, **options, **of_layers})


def options_of(optimizer: torch.optim.Optimizer) -> dict[str, float | str]:
    """Return the options of the optimizer except the learning rate, with the names of a ``Recipe``."""
    group = optimizer.param_groups[0]
    options: dict[str, float | str] = {"variant": group["variant"]} if "variant" in group else {}
    names = ("momentum", "weight_decay", "trust_coefficient", "eps")
    options |= {name: float(group[name]) for name in names if group.get(name) is not None}
    return options | {f"beta{n}": float(beta) for n, beta in enumerate(group.get("betas", ()), start=1)}


class Alone(nn.Module):
    """Model without an exchange, with the attribute names of DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.process_group = module, dist.group.WORLD

    def forward(self, x: Tensor) -> Any:
        """Return the output of the model for ``x``."""
        return self.module(x)


class Trainer:
    """One rank's share of a data-parallel run.

    The sample order of an epoch depends only on (seed, epoch), and each rank takes its slice of every global batch. A resumed
    run therefore sees the same samples as an uninterrupted one. The last partial batch is dropped.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        hook: Hook | PowerSGD,
        optimizer: torch.optim.Optimizer,
        data: Dataset,
        strategy: Strategy,
        seed: int,
        device: torch.device,
        schedule: LRScheduler | None = None,
    ) -> None:
        self.model, self.hook, self.optimizer, self.schedule = model, hook, optimizer, schedule
        self.data, self.strategy, self.seed, self.device = data, strategy, seed, device
        self.arithmetic = Arithmetic(strategy, device)
        self.batch = strategy.global_batch_size  # of the step under way
        self.compiled = False
        self.rank = dist.get_rank()
        self.group: dist.ProcessGroup = model.process_group
        self.times = StepMeasurements()
        self.teacher: nn.Module | None = None  # in eval mode, on the device
        self.distill = 0.0  # share of what it says in the loss
        self.skipped_before = 0  # steps that the optimizer skipped before the resumption
        self.torn = False  # within an update, which may have changed some of the weights
        self._through = False  # the epoch that ``done`` counts
        self.bad_steps = 0  # latest steps in a row whose loss was NaN or infinite
        self.done = 0  # steps of the epoch under way, also those before the resumption
        self.loss_so_far, self.seconds_so_far = torch.zeros((), dtype=torch.float32, device=device), 0.0  # in them
        self.random_state: Mapping[str, Any] | None = None  # of a resumed epoch
        self.plan = StepPlan(len(data.train_y), strategy.global_batch_size)

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's samples of each step of one epoch, from step ``first`` on."""
        order = self.order(epoch)
        for start, batch in self.plan.epoch(epoch)[first:]:
            self._begin_stage(batch)
            own = self.samples_per_step
            mine = order[start + self.rank * own :][:own]
            yield ordered(self.data.train_x[mine].to(self.device), self.strategy), self.data.train_y[mine].to(self.device)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of the first epoch."""
        return len(self.plan.epoch(0))

    @property
    def samples_per_step(self) -> int:
        """This rank's samples of the step under way, in all its micro batches."""
        return self.batch // self.strategy.parallelism.data

    def _begin_stage(self, batch: int) -> None:
        """Take another global batch from the next step on. The noise scale of a stage starts again."""
        if batch != self.batch:
            self.batch = batch
            if self.noise is not None:
                self.noise.load_state_dict({})

    def order(self, epoch: int) -> Tensor:
        """Return the samples of an epoch in their order, by index, equal on every rank."""
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
        return torch.randperm(len(self.data.train_y), generator=generator)

    def samples_checksum(self, epoch: int) -> int:
        """Return a checksum of the order of an epoch and of its first samples."""
        order = self.order(epoch)
        first = order[:_CHECKED_SAMPLES]
        return checksum([order, self.data.train_x[first], self.data.train_y[first]])

    def settle_buckets(self) -> None:
        """Run one step without an update and undo it, because DDP fixes its buckets only after its first backward pass.

        Otherwise the first step of a resumed run would add in another order than the uninterrupted run.
        """
        buffers = {name: buffer.clone() for name, buffer in self.model.module.named_buffers()}
        state = self.hook.state_dict()
        micro = self.strategy.micro_batch_size
        x, y = next(self.batches(0))
        self._loss(x[:micro], y[:micro]).backward()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for name, buffer in self.model.module.named_buffers():
                buffer.copy_(buffers[name])
        self.hook.load_state_dict(state)
        if self.noise is not None:
            self.noise.load_state_dict({})

    @property
    def skipped_steps(self) -> int:
        """Number of steps of the whole run that the optimizer skipped because a gradient was not finite."""
        return self.skipped_before + int(getattr(self.optimizer, "skipped_steps", 0))

    @property
    def noise(self) -> NoiseMeter | None:
        """Meter of the noise scale; None without one."""
        return self.hook.noise if isinstance(self.hook, Hook) else None

    def noise_scale(self) -> float | None:
        """Return the noise scale of the steps since its last value, in samples; None if it is not measured or not known yet."""
        scale = self.noise.scale if self.noise is not None else None
        return None if scale is None else scale.take(self.samples_per_step)

    def train_epoch(self, epoch: int, on_step: Any = None) -> float:
        """Train one pass, or the rest of it. Return the mean training loss of this rank's samples in the whole pass.

        ``on_step`` is called after each step, at its boundary, with the step's number. If it raises, the trainer stays at that
        step.
        """
        if self._through:
            self._through = False
            self.done, self.loss_so_far, self.seconds_so_far = 0, torch.zeros((), dtype=torch.float32, device=self.device), 0.0
        self.model.train()
        torch.manual_seed(mixed_seed(self.seed, epoch, self.rank))  # dropout: equal after a resume
        if self.random_state is not None:
            set_random_state(self.random_state, self.device)
            self.random_state = None
        for number, (x, y) in enumerate(self.batches(epoch, self.done), self.done):
            loss = self._step(x, y)
            self.bad_steps = 0 if bool(torch.isfinite(loss)) else self.bad_steps + 1
            self.loss_so_far += loss
            self.seconds_so_far += self.times.step[-1]
            self.done = number + 1
            if on_step is not None:
                on_step(number)
        self._through = True
        return float(self.loss_so_far) / len(self.plan.epoch(epoch))

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.arithmetic.autocast():
            output = self.model(self.arithmetic.cast(x))
            if self.arithmetic.stored:
                output = output.float()
            loss = classification_loss(output, y)
            if self.teacher is None:
                return loss
            with torch.no_grad():
                taught = self.teacher(x)
            return (1 - self.distill) * loss + self.distill * distillation_loss(output, taught)

    def _exchanges(self, last: bool) -> bool:
        """Return whether a micro step exchanges gradients in its backward pass. ``last``: whether it is the step's last."""
        return last

    def _passes(self, x: Tensor, y: Tensor, meter: Meter) -> tuple[Tensor, float]:
        """Run forward and backward pass of each micro batch. Gradients add up to those of the mean loss.

        Returns:
            The mean loss, and the seconds from the last complete gradient to the end of a backward pass.
        """
        micro = self.strategy.micro_batch_size
        count = self.batch * self.strategy.parallelism.micro_batches // self.strategy.global_batch_size
        losses: list[Tensor] = []
        waited = 0.0
        for number, (a, b) in enumerate(zip(x.split(micro), y.split(micro), strict=True)):
            exchanges = self._exchanges(number == count - 1)
            gathers = isinstance(self.model, DistributedDataParallel) and not exchanges
            with self.model.no_sync() if gathers else nullcontext():
                with meter.span("forward", "compute"):
                    loss = self._loss(a, b)
                start = meter.now()
                self.arithmetic.backward(loss / count if count > 1 else loss)
                self._synchronize()
            returned = meter.now()
            ended = meter.backward_end_s if exchanges else returned
            meter.events.append(Event(name="backward", lane="compute", start_s=start, duration_s=ended - start, rank=self.rank))
            waited += returned - ended
            losses.append(loss.detach())
        return (torch.stack(losses).mean() if count > 1 else losses[0]), waited

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        meter = self.hook.meter
        meter.begin_step()
        loss, waited = self._passes(x, y, meter)
        with meter.span("optimizer", "compute"):
            self.torn = True
            self.arithmetic.update(self.optimizer)
            if self.schedule is not None:
                self.schedule.step()
            self.optimizer.zero_grad()
        self._synchronize()
        self.torn = False
        times = self.times
        times.step.append(meter.now())
        times.exposed.append(waited)
        times.comm.append(meter.seconds("network"))
        times.codec.append(meter.seconds("codec"))
        times.sent.append(meter.sent_bytes)
        times.batch.append(self.batch)
        times.events.append(list(meter.events))
        self._drop_events()
        return loss

    def _drop_events(self) -> None:
        events = self.times.events
        if len(events) > _KEPT_STEPS:
            events[len(events) - _KEPT_STEPS - 1] = []

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Return the share of held-out labels predicted right, and the mean loss; each rank evaluates its part."""
        self.model.eval()
        for buffer in self.model.module.buffers():  # running statistics differ; rank 0's are what a checkpoint holds
            dist.broadcast(buffer, 0)
        mine = slice(self.rank, None, self.strategy.world_size)
        x, y = self.data.test_x[mine], self.data.test_y[mine]
        sums = torch.zeros(2, dtype=torch.float64)
        for a, b in zip(x.split(256), y.split(256), strict=True):
            output = self._outputs(self.model.module, a)
            sums += torch.stack([(output.argmax(-1) == b).sum(), classification_loss(output, b) * b.numel()])
        counted = sums.to(self.device)
        dist.all_reduce(counted)
        right, loss = (counted.cpu() / self.data.test_y.numel()).tolist()
        return right, loss

    def _outputs(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the outputs for samples without gradients, in fp32 on the host."""
        with self.arithmetic.autocast(), uncompiled() if self.compiled else nullcontext():
            output: Tensor = module(self.arithmetic.cast(ordered(x.to(self.device), self.strategy)))
        return output.float().cpu()

    def weights(self) -> dict[str, Any]:
        """Return the weights and buffers that are equal on every rank."""
        return dict(without_shards(self.model.module.state_dict()))

    def optimizer_state(self) -> dict[str, Any]:
        """Return the part of the optimizer's state that is equal on every rank."""
        return dict(without_shards(self.optimizer.state_dict()))

    @property
    def sharers(self) -> int:
        """Number of ranks that divide a copy of weights or optimizer state among them: the first ones have all ``shards``. It
        is 0 if nothing is divided.

        Rank r has the rows of rank ``r % sharers``.
        """
        mesh = self.strategy.parallelism
        return mesh.sharers if mesh.sharding.optimizer else 0

    def shards(self) -> dict[str, Any]:
        """Return this rank's rows of ``model`` and ``optimizer`` if ranks divide them, as ``state_shards.rows_of`` does."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the residuals, which differ from rank to rank, for a checkpoint. The tensors are those in use, not copies."""
        return dict(self.hook.state_dict(copied=False))

    def resume(self, model: Any, optimizer: Any, states: Sequence[Any]) -> None:
        """Continue from the weights, the optimizer's state, and the ``state`` of all ranks."""
        self.model.module.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.hook.load_state_dict(states)

    @property
    def diverges(self) -> bool:
        """True if this rank's losses have been NaN or infinite for so long that the run should stop."""
        return self.bad_steps >= BAD_STEPS

    def weights_to_check(self) -> Mapping[str, Tensor]:
        """Return this rank's part of the weights that a checkpoint holds."""
        return {n: p.to_local() if isinstance(p, DTensor) else p for n, p in self.model.module.named_parameters()}

    def defect(self) -> str:
        """Return what makes it useless to continue on this rank; empty if nothing does."""
        bad = [name for name, values in self.weights_to_check().items() if not is_finite(values.detach())]
        if bad:
            return f"weights are NaN or infinite ({', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''})"
        return f"the loss was NaN or infinite in the last {self.bad_steps} steps" if self.diverges else ""

    def check_replicas(self) -> None:
        """Compare a checksum of the weights over the workers. Raises ReplicasDiverged on every rank."""
        same_weights(self.group, self.model.module.parameters(), self.device)


def classification_loss(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy. ``output``: (B, classes), or (B, T, classes) with a label at each of T positions."""
    return functional.cross_entropy(output.flatten(0, -2), labels.flatten())


def distillation_loss(output: Tensor, taught: Tensor) -> Tensor:
    """Return divergence of softened outputs (Hinton et al. 2015, arXiv:1503.02531, section 2) times squared temperature."""
    soft, target = (each.flatten(0, -2) / TEMPERATURE for each in (output, taught))
    divergence = functional.kl_div(soft.log_softmax(-1), target.log_softmax(-1), reduction="batchmean", log_target=True)
    return divergence * TEMPERATURE**2


def median_step(times: StepMeasurements) -> int:
    """Return the index of the kept step whose duration is nearest to the median."""
    kept = range(max(0, len(times.step) - _KEPT_STEPS), len(times.step))
    middle = statistics.median(times.step)
    return min(kept, key=lambda i: abs(times.step[i] - middle))


def gradient_histogram(sample: Mapping[str, Any], bins: int = 81) -> dict[str, Any]:
    """Count the values of the stages of one gradient on one symmetric axis, as in the TernGrad slides."""
    stages = {name: sample[name] for name in ("original", "clipped", "ternary", "averaged")}
    reach = max(float(np.abs(v).max()) for v in stages.values()) or 1.0
    edges = np.linspace(-reach, reach, bins + 1)
    panels = {
        name: {"edges": edges.tolist(), "counts": np.histogram(values, edges)[0].tolist()} for name, values in stages.items()
    }
    return {**{k: sample[k] for k in ("layer", "step", "sigma", "scale")}, "rank": 0, "panels": panels}
