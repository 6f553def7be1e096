"""Cases of FSDP2 scripts that do more than a step, each with an exchange attached; run by every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable import checkpoint
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from paceline import LAMB, LARS, attach
from sharded_models import CLASSES, INPUTS, Grads, backward, gradients, loss, network, sharded, weights


def composed(rank: int, workers: int) -> dict[str, Any]:
    """Return pairs of outcomes that must be equal: without an exchange, and with a dense one attached."""

    def dense(model: Any, **options: Any) -> Any:
        return attach(model, "dense", exchange="sharded", **options)

    return {name: (outcome(case, rank, lambda model, **_: None), outcome(case, rank, dense)) for name, case in cases().items()}


Attach = Callable[..., Any]
"""Function that takes a model and further keywords of ``attach``."""


def cases() -> dict[str, Callable[[int, Attach], Grads]]:
    """Return the cases by name. Each takes a rank and what it attaches, runs at least two exchanges and returns the outcome of
    the second."""
    return {name.removeprefix("_case_"): function for name, function in globals().items() if name.startswith("_case_")}


def outcome(case: Callable[[int, Attach], Grads], rank: int, hook: Attach) -> Grads:
    """Return the outcome of a case on one rank."""
    torch.manual_seed(5)
    return case(rank, hook)


def _second(model: nn.Module, rank: int) -> Grads:
    backward(model, rank, 0)
    return backward(model, rank, 1)


def _case_accumulation(rank: int, hook: Attach) -> Any:
    """Three backward passes, of which the last alone reduces; twice."""
    model = sharded()
    hook(model)
    for step in range(6):
        if step == 3:
            model.zero_grad()
        model.set_requires_gradient_sync(step % 3 == 2)
        loss(model, rank, step).backward()
    return gradients(model)


def _case_two_reductions(rank: int, hook: Attach) -> Any:
    """Gradients of two reduced backward passes add up."""
    model = sharded()
    hook(model)
    for step in range(2):
        loss(model, rank, step).backward()
    return gradients(model)


def _case_clipping(rank: int, hook: Attach) -> Any:
    model = sharded()
    hook(model)
    _second(model, rank)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return {**gradients(model), "norm": norm.full_tensor()}


def _case_mixed_precision(rank: int, hook: Attach) -> Any:
    """bf16 weights, gradients reduced in fp32."""
    model = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    hook(model)
    return _second(model, rank)


def _case_reduced_in_bf16(rank: int, hook: Attach) -> Any:
    model = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    hook(model)
    return _second(model, rank)


def _case_offload(rank: int, hook: Attach) -> Any:
    model = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    hook(model)
    return _second(model, rank)


def _case_activation_checkpoints(rank: int, hook: Attach) -> Any:
    model = network()
    checkpoint(model[2])
    for part in (model[0], model[2], model):
        fully_shard(part)
    hook(model)
    return _second(model, rank)


def _case_compiled(rank: int, hook: Attach) -> Any:
    model = sharded()
    compiled = torch.compile(model, backend="eager")
    hook(compiled)
    return {name.removeprefix("_orig_mod."): value for name, value in _second(compiled, rank).items()}


def _case_tied(rank: int, hook: Attach) -> Any:
    """Two layers with one weight, in one unit."""
    model = nn.Sequential(nn.Linear(INPUTS, 13), nn.Linear(13, 13, bias=False), nn.Tanh(), nn.Linear(13, 13, bias=False))
    model.append(nn.Linear(13, CLASSES))
    model[3].weight = model[1].weight
    fully_shard(model)
    hook(model)
    return _second(model, rank)


class Adapted(nn.Module):
    """A frozen layer with a trained correction of low rank (LoRA)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 3, bias=False)
        self.up = nn.Linear(3, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def _case_frozen(rank: int, hook: Attach) -> Any:
    model = network()
    model[0], model[4] = Adapted(model[0]), Adapted(model[4])
    for part in (model[0], model[2], model):
        fully_shard(part)
    hook(model)
    return _second(model, rank)


def _case_never_reshard(rank: int, hook: Attach) -> Any:
    """ZeRO-2: weights stay gathered from the forward to the end of the backward pass."""
    model = sharded(reshard_after_forward=False)
    hook(model)
    return _second(model, rank)


def _case_scaler(rank: int, hook: Attach) -> Any:
    """Two steps with a gradient scaler that halves its factor in between."""
    model, scaler = sharded(), torch.amp.GradScaler("cpu", init_scale=64.0)
    hook(model, grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss(model, rank, step)).backward()
        scaler.step(optimizer)
        scaler.update(32.0)
    return weights(model)


def _case_lars(rank: int, hook: Attach) -> Any:
    return _optimized(rank, hook, lambda parameters: LARS(parameters, lr=0.5, momentum=0.9, weight_decay=1e-4))


def _case_lamb(rank: int, hook: Attach) -> Any:
    return _optimized(rank, hook, lambda parameters: LAMB(parameters, lr=0.01, weight_decay=0.01))


def _optimized(rank: int, hook: Attach, make: Any) -> Any:
    model = sharded()
    hook(model)
    optimizer = make(model.named_parameters())
    for step in range(2):
        backward(model, rank, step)
        optimizer.step()
    return weights(model)


def _case_unused(rank: int, hook: Attach) -> Any:
    """Steps that use a layer of a unit, leave it out, and use it again."""
    model = network()
    whole = nn.Sequential(*model[2], nn.Linear(47, 47))
    model[2] = Shortened(whole)
    for part in (model[0], model[2], model):
        fully_shard(part)
    hook(model)
    for step in range(3):
        model[2].last = 3 if step == 1 else 4
        found = backward(model, rank, step)
    return found


class Shortened(nn.Module):
    """The first layers of a block."""

    def __init__(self, block: nn.Sequential) -> None:
        super().__init__()
        self.block, self.last = block, len(block)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.block[: self.last]:
            x = layer(x)
        return x
