"""Recomputation of a network's blocks by ``torch.utils.checkpoint``.

A block runs its own ``forward`` in a checkpoint, so names of parameters stay as they are, and hooks of the module, such as
FSDP2's, run outside.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from paceline.errors import UserError
from paceline.strategy.recompute import CORE, Recompute
from paceline.strategy.sharding import block

_MLP = re.compile(r"(^|\.)(mlp|feed_forward)$")
_aten = torch.ops.aten
_ATTENTION = frozenset(
    {
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default})
_STORED = frozenset(
    {
        *(_ATTENTION | _PRODUCTS),
        *(_aten.convolution.default, _aten.native_layer_norm.default, _aten.native_batch_norm.default),
        *(_aten.gelu.default, _aten.relu.default, _aten.silu.default, _aten.tanh.default, _aten.sigmoid.default),
        *(_aten.add.Tensor, _aten.mul.Tensor, _aten.cat.default, _aten.embedding.default, _aten.rsqrt.default),
        _aten.native_group_norm.default,
    }
)
"""Operations of a block outside core attention. Scores, softmax, dropout and the weighted sum are other ones."""
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def recompute_blocks(model: nn.Module, choice: Recompute) -> list[str]:
    """Let the blocks of a model recompute their activations. Return the names of the modules that do.

    Blocks are the modules with a number in their name, such as ``layers.3``, as in the prediction. With a number of layers
    in ``choice``, they are at equal distances.

    Raises:
        UserError: the model has no blocks, or they have no such part.
    """
    if not choice:
        return []
    chosen = _chosen(model, choice.layers)
    if not chosen:
        raise UserError(f"recompute={choice}, but no module of the network is a numbered block", "leave recompute out")
    if choice.whole_blocks or choice.by_operation or CORE in choice.parts:
        for _, module in chosen:
            _wrap(module, _contexts_of(choice, module))
        names = [name for name, _ in chosen]
    else:
        names = []
    if "mlp" in choice.parts:
        parts = [(f"{name}.{own}", part) for name, module in chosen for own, part in module.named_modules() if _MLP.search(own)]
        if not parts:
            raise UserError(f"recompute={choice}, but no block has a module mlp or feed_forward", "give recompute full")
        for _, part in parts:
            _wrap(part, partial(_whole, part))
        names += [name for name, _ in parts]
    return names


def _chosen(model: nn.Module, count: int) -> list[tuple[str, nn.Module]]:
    blocks = [(name, module) for name, module in model.named_modules() if name and block(f"{name}.") == name]
    if count > len(blocks):
        raise UserError(f"{count} layers to recompute: the network has {len(blocks)} blocks", f"give at most {len(blocks)}")
    count = count or len(blocks)
    return [b for n, b in enumerate(blocks) if (n + 1) * count // len(blocks) > n * count // len(blocks)]


def _wrap(module: nn.Module, contexts: Callable[[], Contexts]) -> None:
    inner = module.forward
    module.forward = partial(checkpoint, inner, use_reentrant=False, context_fn=contexts)  # type: ignore[method-assign]


def _contexts_of(choice: Recompute, module: nn.Module) -> Callable[[], Contexts]:
    if choice.whole_blocks:
        return partial(_whole, module)
    policy = _ByOperation if choice.by_operation else _Scores
    return partial(_selective, policy, module)


def _whole(module: nn.Module) -> Contexts:
    norms = _norms(module)
    return nullcontext(), _statistics_kept(norms) if norms else nullcontext()


def _selective(policy: type[_Policy], module: nn.Module) -> Contexts:
    forward, again = create_selective_checkpoint_contexts(policy())  # type: ignore[no-untyped-call]
    norms = _norms(module)
    return forward, _both(_statistics_kept(norms), again) if norms else again


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


def _norms(module: nn.Module) -> list[_BatchNorm]:
    return [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@contextmanager
def _statistics_kept(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Leave the running statistics of batch norms as the first forward pass has left them."""
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
            norm.num_batches_tracked = norm.num_batches_tracked.clone() if norm.num_batches_tracked is not None else None
        yield
    finally:
        for norm, (momentum, counted) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, counted


class _Policy(ABC):
    """Decision about each operation of a block, the same in both forward passes."""

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        aliases = any(result.alias_info is not None for result in operation._schema.returns)  # a view, or changed in place
        keeps = not aliases and self.keeps(operation, context.is_recompute)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    @abstractmethod
    def keeps(self, operation: Any, again: bool) -> bool:
        """Return whether the result of an operation is kept. ``again``: in the second forward pass."""


class _Scores(_Policy):
    """Recompute the scores of attention without a fused kernel, and keep all other results."""

    def keeps(self, operation: Any, again: bool) -> bool:
        return operation in _STORED


class _ByOperation(_Policy):
    """Keep the results of attention and of the first, third, ... product, as torchtitan does."""

    def __init__(self) -> None:
        self._products = [0, 0]  # in the first forward pass and in the second

    def keeps(self, operation: Any, again: bool) -> bool:
        if operation in _PRODUCTS:
            self._products[again] += 1
            return self._products[again] % 2 == 1
        return operation in _ATTENTION
