"""Callback for Hugging Face's ``Trainer``: ``Trainer(..., callbacks=[PacelineCallback(compression="terngrad")])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from paceline.integrations.hook_state import read_state, write_state
from paceline.integrations.step_comparison import CallbackBase, attach_when_wrapped
from paceline.names import look_up
from paceline.strategy.optimizer import OPTIMIZER_ALIASES, OPTIMIZERS


class TransformersCallback(CallbackBase, TrainerCallback):
    """Show the predicted step next to the measured one, and compress gradients.

    The first rank prints the line after 20 steps and at the end. Steps next to an evaluation or a checkpoint do not count.

    Args:
        workload, cluster, network, choices, records: as for ``StepComparison``.
        compression: as for ``paceline.attach``; None leaves gradients as they are. Each rank writes its residuals into the
            Trainer's checkpoints, and a run that is resumed from one in its ``output_dir`` reads them.
        options, keywords: as for ``paceline.attach``. The gradient scaler is the Trainer's by default.

    Raises:
        UserError: at the start of training: compression with one process; at the first step: without
            DistributedDataParallel, as ``paceline.attach``, or a checkpoint of another compression.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start to measure, and prepare the hook."""
        model = given["model"]
        if self._compression is not None:
            scaler = getattr(given.get("optimizer"), "scaler", None)
            folder = _checkpoint(args, state) if state.global_step else None

            def attach_to(wrapped: DistributedDataParallel) -> None:
                hook = self._attach(wrapped, scaler)
                if folder is not None:
                    read_state(hook, folder)

            attach_when_wrapped(model, attach_to)
        self.comparison.begin(model, settings_of(args))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count a step at its end."""
        self.comparison.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Interrupt the measurement for an evaluation."""
        self.comparison.interrupt()

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write the hook's state into the checkpoint and interrupt the measurement."""
        if self._hook is not None:
            write_state(self._hook, _checkpoint(args, state))
        self.comparison.interrupt()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Show the comparison at the end of training."""
        self.comparison.end()


def _checkpoint(args: Any, state: Any) -> Path:
    """Return the folder of this step's checkpoint, as the Trainer names it."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def settings_of(args: Any) -> dict[str, Any]:
    """Return ``TrainingArguments`` as choices of the strategy."""
    accumulated = int(args.gradient_accumulation_steps)
    settings: dict[str, Any] = {
        "global_batch_size": int(args.per_device_train_batch_size) * accumulated * int(args.world_size),
        "grad_accum_steps": accumulated,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "tf32" if args.tf32 else "fp32",
    }
    name = str(getattr(args.optim, "value", args.optim))
    if optimizer := look_up(name, OPTIMIZERS, OPTIMIZER_ALIASES):
        settings["optimizer"] = optimizer
    if getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", None):  # its name before 6
        settings["recompute"] = "full"
    stage = 0
    if deepspeed := getattr(args, "hf_deepspeed_config", None):
        stage = int(deepspeed.config.get("zero_optimization", {}).get("stage", 0))
    elif args.fsdp:
        kept = (args.fsdp_config or {}).get("reshard_after_forward", True)
        stage = 3 if kept in (True, "true", "full_shard", "FULL_SHARD") else 2
    if stage:
        settings["sharding"] = f"zero{stage}"
    return settings


PacelineCallback = TransformersCallback
"""The name that users import."""
