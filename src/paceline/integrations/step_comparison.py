"""Common parts of the callbacks: measured steps next to the prediction, and a hook attached once DDP wraps the model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from paceline.calibration.imports.job_table import add_row, job_row
from paceline.calibration.imports.step_times import MeasuredSteps, summary
from paceline.calibration.records import observations, recorded_choices
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.catalogue import is_device
from paceline.integrations.hook_state import AnyHook
from paceline.prediction import Prediction, Predictor, StepPredictor, fit
from paceline.strategy import GradientExchange, Strategy
from paceline.strategy.choices.values import plain
from paceline.training.attach.attach import attach
from paceline.training.attach.attach_arguments import Arguments
from paceline.training.attach.attach_keywords import AttachKeywords
from paceline.training.attach.attach_options import AttachOptions
from paceline.units import format_seconds
from paceline.workload import Workload

SHOWN_AFTER = 20
"""Steps after which the comparison is shown for the first time; at the end it is shown again."""


class StepComparison:
    """Measured steps of this process, and the prediction for its job.

    Args:
        workload: a ``Workload`` or a name; None: from the model's Hugging Face configuration.
        cluster: such as ``2x8 A100``; None: this device, in the launcher's number of nodes.
        network: between nodes.
        compression: compression of the gradients; None: uncompressed. ``auto`` is predicted as without one.
        choices: choices of the strategy by name (``Strategy.of``); they take precedence over the framework's settings.
        records: a table of jobs (``.csv``): the prediction learns from it, and the measured step is added at the end.

    Raises:
        UserError: a compression that does not exist, choices that differ from it, or records in another file than a table.
    """

    def __init__(
        self,
        workload: Workload | str | None = None,
        cluster: Cluster | str | None = None,
        network: str | None = None,
        compression: str | GradientExchange | None = None,
        choices: Mapping[str, Any] | None = None,
        records: str | Path | None = None,
    ) -> None:
        self._workload, self._cluster, self._network = workload, cluster, network
        self._given = {**(choices or {}), **_exchange(compression, choices or {})}
        self._records = None if records is None else Path(records)
        if self._records is not None and self._records.suffix != ".csv":
            raise UserError(f"records {self._records}", "a table of jobs is a .csv file")
        self._settings: dict[str, Any] = {}
        self._model: nn.Module | None = None
        self._tokens: int | None = None
        self._started: float | None = None
        self._inputs: RemovableHandle | None = None
        self.steps: list[float] = []

    def begin(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        """Start to measure ``model``; ``settings``: choices of the strategy from the framework's settings."""
        self._model, self._settings, self.steps = model, dict(settings), []
        self._inputs = model.register_forward_pre_hook(self._see, with_kwargs=True)
        self.interrupt()

    def _see(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Record the sequence length in tokens from the first batch."""
        tokens = named.get("input_ids", inputs[0] if inputs else None)
        if isinstance(tokens, torch.Tensor) and tokens.ndim == 2 and not tokens.is_floating_point():
            self._tokens = int(tokens.shape[1])
        if self._inputs is not None:
            self._inputs.remove()
            self._inputs = None

    def step(self) -> None:
        """Record the end of a step. Shows the comparison after ``SHOWN_AFTER`` steps."""
        now = time.perf_counter()
        if self._started is not None:
            self.steps.append(now - self._started)
            if len(self.steps) == SHOWN_AFTER:
                self.show()
        self._started = now

    def interrupt(self) -> None:
        """Exclude the step in progress from the measurement, because an evaluation or a checkpoint interrupts it."""
        self._started = None

    def end(self) -> None:
        """Show the comparison at the end of the run, and add the measured step to the table."""
        if self._inputs is not None:
            self._inputs.remove()
            self._inputs = None
        if self.steps and len(self.steps) != SHOWN_AFTER:  # that comparison has been shown
            self.show()
        if self._records is not None and _is_first():
            try:
                row, _ = job_row(self._measured(), self._row())
                add_row(self._records, row)
            except UserError as error:
                print(f"paceline: nothing was added to {self._records}: {error}", file=sys.stderr)

    def measured_s(self) -> tuple[float, float, float]:
        """Return median and quartiles of the steps after the warm-up, in seconds. Raises UserError for too few steps."""
        return summary(self._measured().kept())

    def predicted(self) -> Prediction:
        """Return the predicted step. Raises UserError, with what is missing, if the job cannot be predicted."""
        predictor: StepPredictor = Predictor()
        if self._records is not None and self._records.exists():
            predictor = fit(observations([self._records]), predictor)
        return predictor.step(self._network_of(), self._machines(), self._strategy())

    def text(self) -> str:
        """Return the comparison in one line."""
        try:
            median, low, high = self.measured_s()
        except UserError as error:
            return f"paceline: {error.message}"
        half = f"half between {format_seconds(low)} and {format_seconds(high)}"
        text = f"paceline: step measured {format_seconds(median)} ({half})"
        try:
            step = self.predicted()
        except UserError as error:
            return f"{text}; not predicted: {error}"
        ends = f"{format_seconds(step.low_s)} to {format_seconds(step.high_s)}"
        return f"{text}, predicted {format_seconds(step.step_time_s)} ({ends}), {median / step.step_time_s - 1:+.0%}"

    def show(self) -> None:
        """Print the comparison on the first rank."""
        if _is_first():
            print(self.text(), file=sys.stderr, flush=True)

    def _measured(self) -> MeasuredSteps:
        return MeasuredSteps(source="this run", step_s=self.steps)

    def _network_of(self) -> Workload:
        if isinstance(self._workload, Workload):
            return self._workload
        if self._workload is not None:
            return Workload.named(self._workload, self._tokens)
        config = getattr(self._model, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            raise UserError("the model has no configuration to read", "name it: PacelineCallback(workload='resnet-50')")
        return Workload.from_config(config, self._tokens)

    def _machines(self) -> Cluster:
        if isinstance(self._cluster, Cluster):
            return self._cluster
        if self._cluster is not None:
            return Cluster.named(self._cluster, self._network)
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "this processor"
        if not is_device(name):
            raise UserError(f"{name} is not in the catalogue", "name the devices: PacelineCallback(cluster='2x8 A100')")
        world = _world()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        return Cluster.named(f"{world // local}x{local} {name}", self._network)

    def _strategy(self) -> Strategy:
        chosen = {**self._settings, **self._given, "world_size": self._machines().world_size}
        return Strategy.of(**chosen)

    def _row(self) -> dict[str, str]:
        """Return the columns of the job. Raises UserError if the job cannot be a row of the table."""
        if not isinstance(self._workload, str):
            raise UserError("a table of jobs names its networks", "give workload='llama-3-8b' (paceline workload list)")
        machines, strategy = self._machines(), self._strategy()
        return {
            **recorded_choices(strategy),
            "workload": self._workload,
            "seq_len": str(self._tokens or ""),
            "device": machines.device.name,
            "devices_per_node": machines.node_text,
            "nodes": str(machines.num_nodes),
            "network": self._network or "",
            "global_batch": str(strategy.global_batch_size),
        }


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _exchange(compression: str | GradientExchange | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices of the strategy for a compression; none for ``auto``, which is chosen during training.

    Raises UserError if ``choices`` states another value of one of them.
    """
    if compression is None or compression == "auto":
        return {}
    exchange = GradientExchange(compression) if isinstance(compression, str) else compression
    attached = exchange.to_json()
    for name, value in choices.items():
        if name in attached and plain(value) != attached[name]:
            raise UserError(
                f"choices={{{name!r}: {value!r}}}, and compression has {name} {attached[name]!r}",
                f"give {name} next to compression, and leave it out of choices",
            )
    return attached


class CallbackBase:
    """Base class of the callbacks: the comparison, and the gradient exchange that they attach.

    Args:
        workload, cluster, network, choices, records: as for ``StepComparison``.
        compression, options, keywords: as for ``paceline.attach``; a compression of None leaves gradients as they are.

    Raises:
        UserError: as ``StepComparison``, and as ``GradientExchange`` for the keywords.
    """

    def __init__(
        self,
        workload: Workload | str | None = None,
        cluster: Cluster | str | None = None,
        network: str | None = None,
        *,
        compression: str | GradientExchange | None = None,
        options: AttachOptions | None = None,
        choices: Mapping[str, Any] | None = None,
        records: str | Path | None = None,
        **keywords: Unpack[AttachKeywords],
    ) -> None:
        compared = compression
        if compression is not None and compression != "auto":
            compared = Arguments(compression, options, keywords).named_exchange()  # as ``attach`` reads them
        self.comparison = StepComparison(workload, cluster, network, compared, choices, records)
        self._compression, self._options, self._keywords = compression, options or AttachOptions(), keywords
        self._hook: AnyHook | None = None

    def _attach(self, model: DistributedDataParallel, scaler: Any) -> AnyHook:
        """Attach the exchange, with the framework's scaler if the options have none. Raises UserError as ``attach``."""
        options = replace(self._options, grad_scaler=self._options.grad_scaler or scaler)
        self._hook = attach(model, self._compression or "dense", options, **self._keywords)
        return self._hook


def attach_when_wrapped(model: nn.Module, attach_to: Callable[[DistributedDataParallel], None]) -> None:
    """Call ``attach_to`` with the DDP model at the first forward pass in training after DDP wraps ``model``.

    Raises:
        UserError: only one process; from that forward pass, a model that nothing wraps, or as ``attach_to``.
    """
    if _world() == 1:
        raise UserError("one process exchanges no gradients", "leave compression out, or start several processes")
    handles: list[RemovableHandle] = []

    def leave() -> None:
        while handles:
            handles.pop().remove()

    def wrapped(module: nn.Module, _: Any) -> None:
        if isinstance(module, DistributedDataParallel) and module.module is model:
            leave()
            attach_to(module)

    def bare(module: nn.Module, _: Any) -> None:
        if module.training and handles:
            leave()
            raise UserError(
                "compression needs DistributedDataParallel, and nothing of it wraps the model",
                "leave compression out, or train without FSDP and DeepSpeed",
            )

    handles.append(register_module_forward_pre_hook(wrapped))
    handles.append(model.register_forward_pre_hook(bare))
