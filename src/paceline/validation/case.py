"""One measured row as a case to predict, or the reason against it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import UserError, unknown
from paceline.hardware.cluster import Cluster
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

HoldOut = Literal["device", "model", "scale"]
Software = Literal["tuned", "eager", "ordinary"]
PrecisionSource = Literal["row", "submission", "usual"]
HOLD_OUTS: tuple[HoldOut, ...] = ("device", "model", "scale")


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys under which a row is counted.

    Attributes:
        model, device: as the file or the catalogue names them.
        devices, nodes: numbers of them.
        system: owner of the machine (submitter, cluster, platform), so that a baseline compares equal systems.
        release: release of the software, if stated: rows of another release are ignored if the same release has rows.
    """

    model: str
    device: str
    devices: int = 0
    nodes: int = 0
    system: str = ""
    release: str = ""


UNREADABLE = Keys("", "")
"""Reason of a row whose cells cannot be read."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Row that is not predicted.

    Attributes:
        good: True if the row is usable but the model cannot predict it.
        detail: place and error of a row that cannot be read.
    """

    keys: Keys
    reason: str
    good: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a job: its devices and choices."""

    cluster: Cluster
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Row that is predicted.

    Attributes:
        software: ``tuned`` (as for a benchmark), ``eager`` (the same with kernels launched one by one, before graphs of
            them) or ``ordinary`` (framework code as people write it).
        framework: name in ``FRAMEWORKS`` of the software that trained; empty: the plain one of ``software``.
        step_s, sync_s: measured seconds of a step and of the part that waits for the exchange, if the file states it. 0: only
            the memory was measured.
        published: predictions of others for this row, seconds by name. ``published_memory``: bytes of a device by name.
        year: year of the software, if the set states it; 0: the newest.
        attention: the kernel of attention where it is not the software's usual one.
        overlap: False if the run switched overlap of exchanges and passes off; None: as usual.
        memory_bytes: measured peak of a device's memory, if the file states it. ``memory_counts``: what the peak counts, the
            tensors that PyTorch ``allocated``, or all that the ``device`` holds. ``held_bytes``: bytes of a device that its
            software holds in addition to those of the strategy.
        precision_from: source of the precision: the ``row``, the ``submission`` or its script, or ``usual`` for its software.
    """

    keys: Keys
    workload: Workload
    setting: Setting
    software: Software
    step_s: float
    sync_s: float | None = None
    published: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float | None = None
    memory_counts: Literal["allocated", "device"] = "device"
    held_bytes: float = 0.0
    year: float = 0.0
    framework: str = ""
    attention: str = ""
    overlap: bool | None = None
    precision_from: PrecisionSource = "row"
    published_memory: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples of a step, over all devices."""
        return self.setting.strategy.global_batch_size

    @property
    def precision(self) -> str:
        """Precision of the matrix products."""
        return self.setting.strategy.precision


@dataclass(frozen=True, slots=True)
class Info:
    """Rows of the file that the predictor may see before it predicts the others.

    ``none`` sees nothing, ``one_device`` the single-device rows of the same model and device, ``one_node`` the rows with
    one node, ``up_to`` the rows with at most ``limit`` devices.
    """

    kind: Literal["none", "one_device", "one_node", "up_to"] = "none"
    limit: int = 0

    @classmethod
    def parse(cls, text: str) -> Info:
        """Parse ``none``, ``one_device``, ``one_node`` or ``up_to=8``. Raises UserError otherwise."""
        if text in ("none", "one_device", "one_node"):
            return cls(text)  # type: ignore[arg-type]
        if matched := re.fullmatch(r"up_to=([1-9][0-9]{0,8})", text):
            return cls("up_to", int(matched[1]))
        if text.startswith("up_to"):
            raise UserError(f"info {text!r} has no number of devices", "write it as up_to=8")
        raise unknown("info", text, ("none", "one_device", "one_node", "up_to=N"))

    def shows(self, keys: Keys) -> bool:
        """Return whether a row may be seen, at least for its own model and device; visible rows are not scored."""
        if self.kind == "one_device":
            return keys.devices == 1
        if self.kind == "one_node":
            return keys.nodes == 1
        return self.kind == "up_to" and keys.devices <= self.limit

    @property
    def hold_out(self) -> HoldOut:
        """Kind of rows excluded from the fit of the shipped constants by default. Boards of one chip count as one device."""
        return {"none": "device", "one_device": "model"}.get(self.kind, "scale")  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"up_to={self.limit}" if self.kind == "up_to" else self.kind
