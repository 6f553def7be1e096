"""Callback for Lightning's ``Trainer``: ``Trainer(..., callbacks=[PacelineCallback(workload="resnet-50")])``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.integrations.hook_state import gathered, load_states
from paceline.integrations.step_comparison import CallbackBase

KEY = "paceline_hook"
"""Name of the states in a checkpoint."""
_PRECISIONS = {"bf16": "bf16", "16": "fp16", "32": "fp32"}
"""Beginnings of the Trainer's names, and ours."""


def _callback() -> Any:
    """Return the class ``Callback`` of Lightning under either of its names, first under the one that the script has imported.

    Raises:
        ModuleNotFoundError: neither is installed; it says what to install.
    """
    names = ["lightning.pytorch", "pytorch_lightning"]
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        names.reverse()
    for name in names:
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ModuleNotFoundError("this callback needs Lightning: pip install lightning, or pytorch-lightning", name="lightning")


class LightningCallback(CallbackBase, _callback()):  # type: ignore[misc]
    """Show the predicted step next to the measured one, and compress gradients.

    The first rank prints the line after 20 steps and at the end. Steps next to a validation or a checkpoint do not count.

    Args:
        workload, cluster, network, choices, records: as for ``StepComparison``.
        compression: as for ``paceline.attach``; None leaves gradients as they are. The residuals of all ranks are in the
            Trainer's checkpoints, except those of weights alone, and a resumed run continues with them.
        options, keywords: as for ``paceline.attach``. The gradient scaler is the Trainer's by default.

    Raises:
        UserError: at the start of training: compression without Lightning's strategy ``ddp``; or as ``paceline.attach``.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._step = 0
        self._resumed: list[Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the hook and start to measure."""
        if self._compression is not None:
            wrapped = trainer.strategy.model
            if not isinstance(wrapped, DistributedDataParallel):
                raise UserError(
                    f"compression with {type(trainer.strategy).__name__}, which does not wrap the model in DDP",
                    "give Trainer(strategy='ddp') and several devices, or leave compression out",
                )
            hook = self._attach(wrapped, getattr(trainer.precision_plugin, "scaler", None))
            if self._resumed is not None:
                load_states(hook, self._resumed, "the checkpoint")
                self._resumed = None
        self._step = trainer.global_step
        inner = getattr(pl_module, "model", pl_module)
        self.comparison.begin(inner if hasattr(inner, "config") else pl_module, _settings_of(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a step if the weights have changed at the end of a batch."""
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            self.comparison.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Interrupt the measurement for a validation."""
        self.comparison.interrupt()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Resume the measurement after a validation."""
        self.comparison.interrupt()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put the hook's states into the checkpoint and interrupt the measurement."""
        if self._hook is not None:
            checkpoint[KEY] = gathered(self._hook)
        self.comparison.interrupt()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the hook's states until it is attached."""
        self._resumed = checkpoint.get(KEY, [])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Show the comparison at the end of training."""
        self.comparison.end()


def _settings_of(trainer: Any) -> dict[str, Any]:
    """Return a ``Trainer``'s settings as choices of the strategy."""
    accumulated = int(trainer.accumulate_grad_batches)
    batch = getattr(trainer.train_dataloader, "batch_size", None)
    settings: dict[str, Any] = {"grad_accum_steps": accumulated}
    if batch:
        settings["global_batch_size"] = int(batch) * accumulated * int(trainer.world_size)
    precision = next((ours for theirs, ours in _PRECISIONS.items() if str(trainer.precision).startswith(theirs)), "")
    if precision:
        settings["precision"] = precision
    return settings


PacelineCallback = LightningCallback
"""The name that users import."""
