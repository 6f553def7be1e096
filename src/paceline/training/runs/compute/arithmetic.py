"""Precision of a run's steps: autocast, bf16 weights, and the gradient scaler of fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.errors import UserError
from paceline.hardware.precision import PRECISIONS
from paceline.strategy import Strategy


class Arithmetic:
    """Precision in which a rank computes.

    Under DDP and local steps the weights are fp32, and ``torch.autocast`` computes in 16 bits. FSDP2 has a policy instead, by
    which it gathers weights and reduces gradients in 16 bits. Weights that are stored in bf16 need neither.

    Attributes:
        dtype: 16-bit type of mixed precision; None computes in fp32.
        stored: True if the weights have that type.
        scaler: gradient scaler of fp16; None without one.
    """

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        precision = PRECISIONS[strategy.precision]
        self.dtype: torch.dtype | None = getattr(torch, precision.dtype) if precision.dtype else None
        self.stored = strategy.weight_update.narrow
        self._device = device.type
        self._autocasts = self.dtype is not None and not self.stored and not strategy.parallelism.sharding.weights
        self.scaler = torch.amp.GradScaler(device.type) if precision.scales_loss else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass with its loss."""
        return torch.autocast(self._device, self.dtype) if self._autocasts else nullcontext()

    def cast(self, x: Tensor) -> Tensor:
        """Return inputs in the type of the weights, as FSDP2 casts them itself."""
        return x.to(self.dtype) if self.stored and x.is_floating_point() else x

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss, scaled if there is a scaler."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer. A scaler skips the step if a gradient has overflowed."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler, equal on every rank; empty without one."""
        return dict(self.scaler.state_dict()) if self.scaler is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the scaler, if there are both."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


def sharded_precision(strategy: Strategy, *, root: bool) -> MixedPrecisionPolicy:
    """Return FSDP2's policy for a unit: weights and gradients travel as the prediction counts them.

    Args:
        root: whether the unit is the model itself, whose output is fp32.
    """
    name = PRECISIONS[strategy.precision].dtype
    if not name:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, name),
        reduce_dtype=torch.float32 if strategy.parallelism.gradient_bits == 32 else None,
        output_dtype=torch.float32 if root else None,
    )


def check_precision(strategy: Strategy, network: nn.Module, kind: str) -> None:
    """Raise UserError for a precision in which torch does not train this network on ``kind``, ``cpu`` or ``cuda``."""
    precision = PRECISIONS[strategy.precision]
    norm = next((name for name, module in network.named_modules() if isinstance(module, _BatchNorm)), None)
    if precision.dtype and strategy.parallelism.sharding.weights and not strategy.weight_update.narrow and norm is not None:
        raise UserError(
            f"{strategy.precision} with sharding {strategy.parallelism.sharding}: FSDP2 gathers the weights of {norm}, a batch "
            "norm, in 16 bits next to statistics in 32",
            "give sharding ddp or zero1, or precision fp32",
        )
    if kind == "cpu" and precision.scales_loss:
        raise UserError(
            f"{strategy.precision} on a CPU, whose kernels are slower in it than in fp32 and overflow", "give precision bf16"
        )
    if kind == "cpu" and precision.truncates:
        raise UserError(f"{strategy.precision} on a CPU, which has no such matrix units", "give precision fp32 or bf16")


def set_products(strategy: Strategy) -> None:
    """Let products of fp32 numbers use matrix units in this process, if the precision is tf32."""
    if PRECISIONS[strategy.precision].truncates:
        torch.set_float32_matmul_precision("high")
