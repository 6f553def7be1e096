"""Time estimates for SkyPilot's optimizer, from the predictor: ``task.set_time_estimator(paceline_estimator)``.

SkyPilot minimizes cost or time over the resources of a task and assumes one hour for each, unless the task has an estimator of
seconds (``sky/task.py``, ``Task.set_time_estimator``; ``sky/optimizer.py``). This module needs neither SkyPilot nor PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from paceline.errors import UserError, shorten, unknown
from paceline.hardware.catalogue import device, is_device
from paceline.hardware.instances import instance
from paceline.planning.emit.clouds.names import SKYPILOT_NAMES
from paceline.prediction import Prediction
from paceline.units import format_seconds, parse_count
from paceline.verbs import predict
from paceline.workload import Workload


class SkyResources(Protocol):
    """Attributes of ``sky.Resources`` that the estimate needs."""

    @property
    def accelerators(self) -> Mapping[str, int | float] | None:
        """Accelerators of a node, by SkyPilot's name."""

    @property
    def instance_type(self) -> str | None:
        """Instance of a cloud; None: any that has the accelerators."""


class TimeEstimator:
    """Estimator of the seconds that a training takes on ``sky.Resources``.

    Args:
        workload: a name or a ``Workload``, as ``paceline.predict`` takes it.
        samples, tokens: amount to train, one of them, as a number or a text such as ``1.2M``.
        num_nodes: nodes of the task. SkyPilot does not tell the estimator.
        devices: device that a name of SkyPilot means, such as ``{"H100": "H100 SXM"}``, if clouds use it for several.
        setup_s: seconds before the training, for example to install and to download. SkyPilot's provisioning is not predicted.
        options: further arguments of ``paceline.predict``, such as ``network``, ``seq_len`` and choices of the strategy.

    Raises:
        UserError: neither or both amounts, or an illegal one.
    """

    def __init__(
        self,
        workload: Workload | str,
        *,
        samples: str | float = 0,
        tokens: str | float = 0,
        num_nodes: int = 1,
        devices: Mapping[str, str] | None = None,
        setup_s: float = 0.0,
        **options: Any,
    ) -> None:
        amounts = [parse_count(value) if isinstance(value, str) else float(value) for value in (samples, tokens)]
        if sum(amount > 0 for amount in amounts) != 1 or min(amounts) < 0:
            raise UserError(f"{amounts[0]:g} samples and {amounts[1]:g} tokens", "give `samples` or `tokens`, above 0")
        if num_nodes < 1 or not 0 <= setup_s < math.inf:
            raise UserError(f"{num_nodes} nodes and {setup_s:g} s of setup", "give at least one node, and 0 s or more")
        self._workload, self._options = workload, options
        self._samples = amounts[0] or amounts[1] / self._tokens_per_sample()
        self._num_nodes, self._setup_s = num_nodes, setup_s
        self._devices = {name.casefold(): device(meant).name for name, meant in (devices or {}).items()}
        self.remarks: dict[str, str] = {}
        """Assumptions by the resources that they concern."""

    def _tokens_per_sample(self) -> int:
        stated = self._options.get("seq_len")
        workload = Workload.named(self._workload, stated) if isinstance(self._workload, str) else self._workload
        if not workload.tokens or "task" in self._options:
            raise UserError(f"a sample of {workload.name} is {workload.sample}, not a number of tokens", "give `samples`")
        return int(workload.tokens)

    def __call__(self, resources: SkyResources) -> float:
        """Return whole seconds; inf if the training does not fit there.

        A name that SkyPilot uses for several devices counts as the slowest of them, with a line in ``remarks``, unless
        ``devices`` says which it is.

        Raises:
            UserError: resources without accelerators, or accelerators that are not in the catalogue.
        """
        found = machines(resources, self._devices)
        seconds = {machine: self._seconds(self._predict(machine)) for machine in found}
        if len(found) > 1:
            each = ", ".join(f"{machine} {_hours(time)}" for machine, time in seconds.items())
            self.remarks[str(dict(resources.accelerators or {}))] = f"clouds use this name for several devices: {each}"
        return max(seconds.values())

    def _predict(self, machine: str) -> Prediction:
        return predict(self._workload, f"{self._num_nodes}x {machine}", **self._options)

    def _seconds(self, prediction: Prediction) -> float:
        if not prediction.fits:
            return math.inf
        return math.ceil(self._setup_s + self._samples / prediction.samples_per_s)


def machines(resources: SkyResources, meant: Mapping[str, str] | None = None) -> Sequence[str]:
    """Return the nodes that resources may mean, as ``paceline.predict`` names them. Raises UserError for unknown ones.

    Args:
        meant: device by SkyPilot's name in lower case.
    """
    if resources.instance_type and instance(resources.instance_type) is not None:
        return [resources.instance_type]
    accelerators = dict(resources.accelerators or {})
    if len(accelerators) != 1:
        has = ", ".join(accelerators) or resources.instance_type or "none"
        raise UserError(f"accelerators {shorten(has)}", "name one kind, such as sky.Resources(accelerators='H100:8')")
    ((name, count),) = accelerators.items()
    if count < 1 or count != int(count):
        raise UserError(f"{count:g} of accelerator {name}", "no speed of a part of a device is predicted: give whole devices")
    devices = [own for own, theirs in SKYPILOT_NAMES.items() if theirs.casefold() == name.casefold()]
    devices = [meant[name.casefold()]] if meant and name.casefold() in meant else devices
    if not devices and is_device(name):
        devices = [name]
    if not devices:
        raise unknown("accelerator", name, sorted(set(SKYPILOT_NAMES.values())))
    return [f"{int(count)} {kind}" for kind in devices]


def _hours(seconds: float) -> str:
    return "does not fit" if math.isinf(seconds) else format_seconds(seconds)
