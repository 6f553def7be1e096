"""Bytes of optimizer state and of gradients, by the shapes of a network's tensors.

Sources: bitsandbytes, ``optim/optimizer.py`` (8-bit state in blocks, 32-bit state of small tensors); transformers,
``optimization.py`` (``Adafactor``); PyTorch, ``torch.optim.Muon``.
"""

from __future__ import annotations

from math import ceil, prod

from paceline.prediction.passes.orthogonal import matrix_elements
from paceline.strategy.frameworks import Framework
from paceline.strategy.optimizer import BLOCK, LEAST_8BIT, OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.strategy.updates.weight_update import FOREACH, IN_BACKWARD, LOOPED
from paceline.workload.prepared import once
from paceline.workload.table import Workload

PAGE = 2 << 20
"""Bytes that the driver moves at once (NVIDIA, CUDA programming guide, unified memory on systems with 2 MiB pages)."""


def state_bytes(workload: Workload, strategy: Strategy, stored: float) -> float:
    """Return bytes of optimizer state of all trained tensors.

    Args:
        stored: bytes of one stored value for each trained element, as the update reads it.
    """
    optimizer, update = OPTIMIZERS[strategy.optimizer], strategy.weight_update
    if optimizer.factored:
        return 4 * _factored_values(workload)
    if optimizer.state_bits == 8:
        return optimizer.state_words * _blocked_bytes(workload)
    if optimizer.orthogonal:
        matrices = matrix_elements(workload)
        share = (matrices + 2 * (workload.num_parameters - matrices)) / max(1, workload.num_parameters)
        return share * stored
    if update.state_bits or optimizer.wide_state:
        return optimizer.state_words * update.value_bytes(optimizer) * workload.num_parameters
    return optimizer.state_words * stored


@once
def _blocked_bytes(workload: Workload) -> float:
    """Return bytes of one 8-bit value for each element with the scales of the blocks; small tensors have fp32 values."""
    sizes = [p.size for p in workload.parameters]
    return float(sum(n + 4 * ceil(n / BLOCK) if n >= LEAST_8BIT else 4 * n for n in sizes))


def embedding_excess(workload: Workload, strategy: Strategy) -> float:
    """Return bytes by which 32-bit state of embeddings exceeds their 8-bit state; 0 for other optimizers."""
    optimizer = OPTIMIZERS[strategy.optimizer]
    if optimizer.state_bits != 8:
        return 0.0
    tables = [p.size for p in workload.parameters if workload.layers[p.layer].kind == "Embedding" and p.size >= LEAST_8BIT]
    return optimizer.state_words * float(sum(3 * n - 4 * ceil(n / BLOCK) for n in tables))


@once
def _factored_values(workload: Workload) -> float:
    """Return the values of a second moment that is kept by the rows and the columns of each matrix."""
    total = 0.0
    for shape in (p.shape for p in workload.parameters):
        total += prod(shape[:-1]) + prod(shape[:-2]) * shape[-1] if len(shape) > 1 else prod(shape)
    return total


@once
def largest_tensor(workload: Workload) -> float:
    """Return the elements of the largest trained tensor."""
    return float(max((p.size for p in workload.parameters), default=0))


def temporary_bytes(workload: Workload, strategy: Strategy, stored: float, framework: Framework) -> float:
    """Return bytes that the update of one device holds in addition to weights, gradients and state.

    PyTorch's default computes the roots of all second moments before it uses one (``torch.optim.Adam``, ``foreach``: about as
    much as the parameters). A loop does so for one tensor. Megatron and DeepSpeed have fused kernels. Adafactor holds the
    squared gradient and the update, and fp32 copies of bf16 weights and gradients. Muon holds the update in fp32, two iterates
    in 16 bits and two Gram matrices.

    Args:
        framework: the software, whose update is plain PyTorch's unless it or the strategy names another.
    """
    optimizer, update = OPTIMIZERS[strategy.optimizer], strategy.weight_update
    way = update.way(optimizer, framework)
    if not way and framework.level == "ordinary" and optimizer.is_adam:
        way = FOREACH
    if way == FOREACH:
        return stored if optimizer.is_adam else 0.0
    if way not in (LOOPED, IN_BACKWARD):
        return 0.0
    if optimizer.factored:
        each = 16.0 if update.narrow else 8.0
    elif optimizer.orthogonal:
        each = 12.0
    else:
        each = float(update.width) if optimizer.is_adam else 0.0
    return each * largest_tensor(workload)


def paged_out(needed: float, state: float, strategy: Strategy, usable: float) -> float:
    """Return bytes of paged optimizer state in host memory: those that do not fit the device next to all else.

    The driver evicts pages when the device is full (bitsandbytes, documentation, paged optimizers).

    Args:
        needed: bytes of a step with all ``state``. ``usable``: bytes of the device without its headroom.
    """
    return min(state, PAGE * ceil(max(0.0, needed - usable) / PAGE)) if is_paged(strategy) else 0.0


def is_paged(strategy: Strategy) -> bool:
    """Return whether the optimizer state is in unified memory."""
    return OPTIMIZERS[strategy.optimizer].paged
