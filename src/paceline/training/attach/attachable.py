"""Checks of models that ``attach`` can serve, with advice for all others. The error says why not, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec


def ddp_of(model: object, or_sharded: bool = True) -> DistributedDataParallel:
    """Return the DDP model to attach to: ``model`` itself, or the one inside a compiled model.

    Args:
        or_sharded: True if the caller also accepts models of ``fully_shard``, so that the message names both ways.

    Raises:
        UserError: a model without DDP.
    """
    inner = getattr(model, "_orig_mod", model)  # of torch.compile's OptimizedModule
    if isinstance(inner, DistributedDataParallel):
        return inner
    kind = type(inner).__name__
    if _is_a("torch.distributed.fsdp", "FullyShardedDataParallel", inner):
        raise UserError(
            "attach got a FullyShardedDataParallel model (FSDP1), whose gradients it cannot reach",
            "shard it with torch.distributed.fsdp.fully_shard",
        )
    if _is_a("torch.distributed._composable.replicate", "DDP", inner):
        raise replicated()
    if inner is not model:
        sharded = ", or fully_shard(model)" if or_sharded else ""
        raise UserError(
            f"attach got a compiled {kind} without DistributedDataParallel{' or fully_shard' if or_sharded else ''}",
            f"wrap, attach, compile: model = DistributedDataParallel({kind}()){sharded}; attach(model); "
            "model = torch.compile(model)",
        )
    raise UserError(
        f"attach takes a model in DistributedDataParallel{' or sharded by fully_shard' if or_sharded else ''}, got {kind}",
        f"wrap it first: model = DistributedDataParallel(model){', or shard it: fully_shard(model)' if or_sharded else ''}",
    )


def replicated() -> UserError:
    """Return the error for a model of ``replicate``."""
    return UserError(
        "this model is replicated by replicate(), which no exchange can be attached to",
        "wrap it in DistributedDataParallel instead, or shard it with fully_shard, and attach to that",
    )


def check_model(model: DistributedDataParallel) -> None:
    """Raise UserError for a DDP model whose gradients cannot be exchanged here."""
    if model.mixed_precision is not None:
        raise UserError(
            "DDP's mixed_precision exchanges gradients through its own communication hook, and DDP takes one",
            "leave mixed_precision out of DistributedDataParallel, and run the forward pass under torch.autocast",
        )
    if getattr(model, "_use_python_reducer", False):
        raise UserError(
            "torch._dynamo.config.optimize_ddp was python_reducer when DDP wrapped the model: it compiles its own exchanges in",
            "set optimize_ddp = 'ddp_optimizer' (the default) before DistributedDataParallel wraps the model",
        )
    if getattr(model, "_comm_hooks", None):
        raise UserError("this model has a communication hook already", "attach once, right after wrapping it")
    check_embeddings(model.module)
    complex_ = [name for name, p in model.module.named_parameters() if p.requires_grad and p.is_complex()]
    if complex_:
        raise UserError(f"{', '.join(complex_)}: complex gradients cannot be exchanged here", "train real and imaginary parts")


def check_embeddings(model: nn.Module) -> None:
    """Raise UserError for a trained embedding with sparse gradients."""
    sparse = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    ]
    if sparse:
        raise UserError(f"{', '.join(sparse)}: sparse gradients cannot be exchanged here", "build the layer with sparse=False")


def refuse_sparse_gradients(model: DistributedDataParallel, tensors: Mapping[int, TensorSpec]) -> None:
    """Raise UserError at a parameter's first gradient if it is sparse, as with ``F.embedding(sparse=True)``.

    DDP would only report that it cannot access a storage. Later gradients are not checked.
    """
    for parameter in model.module.parameters():
        if id(parameter) in tensors and parameter.requires_grad:
            look_once(parameter, tensors[id(parameter)].name)


def look_once(parameter: torch.Tensor, name: str) -> None:
    """Raise UserError, within the backward pass, if the next gradient of a parameter is sparse."""

    def look(gradient: torch.Tensor) -> None:
        handle.remove()
        if gradient.is_sparse:
            raise UserError(
                f"{name} has a sparse gradient, which cannot be exchanged here", "call F.embedding with sparse=False"
            )

    handle = parameter.register_hook(look)


def _is_a(package: str, name: str, value: object) -> bool:
    """Return whether an object is an instance of a class whose package may not be loaded. If it is not loaded, the result is
    False."""
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
