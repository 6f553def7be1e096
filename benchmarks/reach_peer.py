"""Torch-Pruning 1.6 on the networks of ``slim_reach.py``: whether the pruned network runs, and equals its masked form.

    pip install --no-deps --target FOLDER torch-pruning==1.6.1
    PYTHONPATH=FOLDER python benchmarks/slim_reach.py --peer --out benchmarks/results/slim_reach_peer.csv

It removes half of the channels of every layer but those whose result is the network's output, with the settings of its own
examples: heads are removed whole where modules have ``q_proj``, ``k_proj`` and ``v_proj``, or ``qkv`` and ``num_heads``, and
the numbers that these examples change are changed. The masked form is the whole network with zeros wherever a parameter lost a
slice, which is found from the weights: no two are equal. Removing what a norm averages over changes the function, and
Torch-Pruning does so by design, so ``differs`` says that training must repair it, not that the network is useless.
"""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from reach_networks import NETWORKS
from torch import Tensor, nn

from paceline.errors import UserError, shorten
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.shrink import differs, tensors_in

COLUMNS = ("architecture", "from", "tool", "result", "parity", "parameters", "left", "layers", "narrower", "seconds", "why")
EQUAL = 1e-5
"""Largest difference from the masked form, relative to the largest output, of an equal network."""
HEADS = ("q_proj", "k_proj", "v_proj")
LIMIT_S = 60
"""Processor seconds after which a tool that returned nothing is stopped: its groups grow very large on some networks."""


def measure(name: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return the row of an architecture."""
    source, make = NETWORKS[name]
    torch.manual_seed(0)
    model, inputs = make()
    whole, given = _double(model, inputs)
    row: dict[str, Any] = {"architecture": name, "from": source, "tool": f"torch-pruning {version('torch_pruning')}"}
    row |= {"parameters": sum(each.numel() for each in whole.parameters())}
    small = copy.deepcopy(whole)
    start = time.process_time()
    try:
        with eval_mode(small), _limited(limit_s):
            pruned(small, given)
    except Exception as error:  # a peer may raise anything
        return row | {"result": "fails", "why": _words(error)}
    row |= {"seconds": f"{time.process_time() - start:.1f}", "left": sum(each.numel() for each in small.parameters())}
    before, after = dict(whole.named_parameters()), dict(small.named_parameters())
    weights = [name for name, each in before.items() if each.dim() > 1]
    narrower = [name for name in weights if name in after and after[name].shape != before[name].shape]
    row |= {"layers": len(weights), "narrower": len(narrower)}
    try:
        with eval_mode(small), torch.no_grad():
            small(*given)
    except Exception as error:  # as above
        return row | {"result": "does not run", "why": _words(error)}
    if not narrower:
        return row | {"result": "unchanged"}
    try:
        with eval_mode(whole), eval_mode(small):
            apart = differs(masked_like(whole, small), small, given)
    except UserError as error:  # it removed a part of the output
        return row | {"result": "differs", "why": shorten(error.message, 120)}
    except Exception as error:  # weights that cannot be compared
        return row | {"result": "runs", "why": _words(error)}
    return row | {"result": "same" if apart <= EQUAL else "differs", "parity": f"{apart:.1g}"}


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Stop the block after some seconds of the processor."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no result within {limit_s:g} s of one processor")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _words(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}", 120)


@torch.no_grad()
def _double(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Convert to double precision if it runs so, with random values instead of equal ones: values identify each slice."""
    double = copy.deepcopy(model).double().eval()
    given = tuple(each.double() if isinstance(each, Tensor) and each.is_floating_point() else each for each in inputs)
    try:
        with eval_mode(double):
            double(*given)
    except RuntimeError:  # a constant in its code is of single precision
        double, given = model.eval(), inputs
    model = double
    generator = torch.Generator().manual_seed(0)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dtype == torch.float64:  # values of single precision repeat
            tensor *= 1 + 1e-9 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
            if tensor.dim() > 1:  # the zeros of a padding token's row
                tensor += 1e-6 * (tensor == 0) * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
        if tensor.is_floating_point() and tensor.numel() > 1 and bool(((tensor - tensor.flatten()[0]).abs() < 1e-6).all()):
            noise = 0.1 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
            tensor += noise if name.endswith("running_var") else noise - 0.05
    return model, given


def pruned(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Remove half of the structures in place, as the tool's examples do."""
    import torch_pruning as tp

    config: Any = getattr(model, "config", None)
    heads = dict(_heads(model, config))
    pruner = tp.pruner.BasePruner(
        model,
        inputs,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=outputs(model, inputs),
        num_heads=heads,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=0.5,
        output_transform=lambda result: list(tensors_in(result)),
    )
    pruner.step()
    for module in model.modules():
        if all(isinstance(getattr(module, name, None), nn.Linear) for name in HEADS) and hasattr(module, "head_dim"):
            _renumber(module, module.q_proj.out_features // module.head_dim, module.k_proj.out_features // module.head_dim)
        elif isinstance(getattr(module, "qkv", None), nn.Linear) and module.qkv in pruner.num_heads:
            module.num_heads = pruner.num_heads[module.qkv]
            module.head_dim = module.qkv.out_features // (3 * module.num_heads)


def _heads(model: nn.Module, config: Any) -> Iterator[tuple[nn.Module, int]]:
    """Yield layers with heads, and how many."""
    for module in model.modules():
        if config is not None and all(isinstance(getattr(module, name, None), nn.Linear) for name in HEADS):
            queries = getattr(config, "num_attention_heads", None)
            if queries:
                keys = getattr(config, "num_key_value_heads", None) or queries
                yield from zip((module.q_proj, module.k_proj, module.v_proj), (queries, keys, keys), strict=True)
        elif isinstance(getattr(module, "qkv", None), nn.Linear) and isinstance(getattr(module, "num_heads", None), int):
            yield module.qkv, module.num_heads


def _renumber(module: Any, queries: int, keys: int) -> None:
    module.num_heads, module.num_key_value_heads = queries, keys
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = queries // keys


def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[nn.Module]:
    """Return the layers with weights whose result is the network's output, as it is or in another shape."""
    found: dict[int, nn.Module] = {}

    def hook(module: nn.Module, _: Any, result: Any) -> None:
        for each in tensors_in(result):
            found[each.untyped_storage().data_ptr()] = module
            kept.append(each)

    kept: list[Tensor] = []
    layers = [each for each in model.modules() if any(True for _ in each.parameters(recurse=False))]
    hooks = [each.register_forward_hook(hook) for each in layers]
    with torch.no_grad():
        ends = list(tensors_in(model(*inputs)))
    for each in hooks:
        each.remove()
    return [found[each.untyped_storage().data_ptr()] for each in ends if each.untyped_storage().data_ptr() in found]


@torch.no_grad()
def masked_like(whole: nn.Module, small: nn.Module) -> nn.Module:
    """Return a copy of the whole network with zeros where the small one has no slice.

    Raises:
        ValueError: the values of a smaller tensor are not those of the larger one.
    """
    same = copy.deepcopy(whole)
    after = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    for name, tensor in [*same.named_parameters(), *same.named_buffers()]:
        if name in after and after[name].shape != tensor.shape and tensor.is_floating_point():
            stays = _stays(tensor, after[name])
            for dim, indices in enumerate(stays):
                gone = torch.ones(tensor.shape[dim], dtype=torch.bool)
                gone[indices] = False
                tensor.index_fill_(dim, gone.nonzero().flatten(), 0)
    return same


def _stays(old: Tensor, new: Tensor) -> list[Tensor]:
    """Return the indices of each dimension that stayed."""
    at = torch.nonzero(old == new.flatten()[0])
    if len(at) != 1 or old.dim() != new.dim():
        raise ValueError(f"weights of {tuple(new.shape)} are no part of {tuple(old.shape)}")
    first, found = at[0].tolist(), []
    for dim in range(old.dim()):
        line = old[tuple(slice(None) if each == dim else index for each, index in enumerate(first))]
        small = new[tuple(slice(None) if each == dim else 0 for each in range(new.dim()))]
        match = small[:, None] == line[None]
        if not bool((match.sum(1) == 1).all()):
            raise ValueError(f"weights of {tuple(new.shape)} are no part of {tuple(old.shape)}")
        found.append(match.int().argmax(1))
    return found
