"""Checks of parameter groups and of states to load, with one clear error for each mistake."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from paceline.errors import UserError
from paceline.training.optimizers.exclusion import check_rule
from paceline.training.optimizers.norms import is_sharded
from paceline.training.optimizers.published_variants import variant_of

_TORCHS = ("params", "param_names", "initial_lr")
"""Keys of a group that torch and its schedulers put there."""
LOW = (torch.bfloat16, torch.float16)
"""Types of parameters that have an fp32 master in the state."""
_TYPES = (torch.float64, torch.float32, *LOW)


def check_keys(kind: str, group: Mapping[str, Any], options: Iterable[str], of_all: Mapping[str, Any]) -> None:
    """Raise UserError for a key of a group that looks like an option but would have no effect.

    Other keys are legal, as in torch, because programs store notes there.

    Args:
        of_all: options of the whole optimizer, which ZeroRedundancyOptimizer also puts into groups.
    """
    for key in group.keys() - set(options) - set(_TORCHS):
        if key in of_all:
            if group[key] == of_all[key]:
                continue
            raise UserError(f"{kind}: a group has {key}, which is an option of the whole optimizer", f"{kind}(..., {key}=...)")
        from difflib import get_close_matches  # only if a group has a foreign key

        # nearer than what ``did_you_mean`` takes: here any other key is legal
        for near in get_close_matches(str(key), options, n=1, cutoff=0.8):
            raise UserError(f"{kind}: a group has {key!r}, which is no option", f"did you mean {near!r}?")


def check_group(kind: str, index: int, group: Mapping[str, Any], variants: Mapping[str, Any], *, may_be_empty: bool) -> None:
    """Raise UserError for a parameter group that an optimizer of this kind cannot use."""
    if not group["params"] and not may_be_empty:
        raise UserError(
            f"{kind}: parameter group {index} is empty",
            'leave it out; under ZeroRedundancyOptimizer, where a rank may own nothing, pass norm_group="world"',
        )
    for i, parameter in enumerate(group["params"]):
        name = group["param_names"][i] if "param_names" in group else f"parameter {i} of group {index}"
        if parameter.dtype not in _TYPES:
            fix = "optimize torch.view_as_real of it" if parameter.is_complex() else "convert it"
            raise UserError(f"{name} is {_short(parameter.dtype)}; {kind} takes fp64, fp32, bf16 and fp16", fix)
        if getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False):
            raise UserError(
                f"{name} belongs to FullyShardedDataParallel, which flattens tensors: {kind} needs the norm of each",
                "use torch.distributed.fsdp.fully_shard",
            )
    published = variant_of(kind, group["variant"], variants)
    if group.get("nesterov") and not published.nesterov:
        having = ", ".join(name for name, variant in variants.items() if variant.nesterov)
        raise UserError(f"{kind} {group['variant']!r} has no Nesterov momentum: {published.source}", f"these have it: {having}")
    check_rule(group["exclude"], "param_names" in group)
    for name in ("maximize", "capturable", "nesterov"):
        if name in group and not isinstance(group[name], bool):
            raise UserError(f"{kind}: {name}={group[name]!r}; legal: True and False")
    _check_numbers(kind, group)


def _check_numbers(kind: str, group: Mapping[str, Any]) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise UserError(f"{kind}: lr is a tensor of {lr.numel()} numbers", "give one number")
        if lr.device.type == "cpu":  # elsewhere reading it would wait for the device
            in_range(kind, "lr", float(lr), 0.0, math.inf)
    else:
        in_range(kind, "lr", lr, 0.0, math.inf)
    for name in ("weight_decay", "eps"):
        in_range(kind, name, group[name], 0.0, math.inf)
    if "trust_coefficient" in group:
        in_range(kind, "trust_coefficient", group["trust_coefficient"], 0.0, math.inf)
        in_range(kind, "momentum", group["momentum"], 0.0, 1.0)
    if "betas" in group:
        if not isinstance(group["betas"], Sequence) or len(group["betas"]) != 2:
            raise UserError(f"{kind}: betas={group['betas']!r}", "give two numbers, such as (0.9, 0.999)")
        for beta in group["betas"]:
            in_range(kind, "betas", beta, 0.0, 1.0)


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float, NaN included, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def in_range(kind: str, name: str, value: Any, low: float, high: float) -> None:
    """Raise UserError unless ``value`` is at least ``low`` and below ``high``. NaN is refused."""
    if not is_number(value) or not low <= value < high:
        legal = f"{low:g} or more, below {high:g}" if high < math.inf else f"{low:g} or more, finite"
        raise UserError(f"{kind}: {name}={value!r}; legal: {legal}")


def check_state(
    kind: str,
    groups: Sequence[Mapping[str, Any]],
    saved: Mapping[str, Any],
    words: Sequence[str],
    options: Iterable[str],
    of_all: Mapping[str, Any],
) -> None:
    """Raise UserError unless ``saved`` is the state of the same optimizer, variant, groups, shapes and options.

    Args:
        of_all: options of the whole optimizer, which a state may name.
    """
    if not isinstance(saved["state"], Mapping) or not isinstance(saved["param_groups"], Sequence):
        raise UserError("this is no optimizer's state", "give what state_dict() returned")
    for group in saved["param_groups"]:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), Sequence):
            raise UserError("a parameter group of this state has no list of params", "give what state_dict() returned")
    sizes = [len(group["params"]) for group in groups]
    given = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != given:
        raise UserError(
            f"this state has parameter groups of {given} tensors; this {kind} has {sizes}", "build the same groups first"
        )
    for group, other in zip(groups, saved["param_groups"], strict=True):
        variant = other.get("variant", group["variant"])
        if variant != group["variant"]:
            raise UserError(
                f"this state is of the variant {variant!r}, this {kind} of {group['variant']!r}: their moments differ",
                f"make it with variant={variant!r}",
            )
        check_of_all(kind, other, of_all)
        names = other.get("param_names") or group.get("param_names") or [f"tensor {i}" for i in range(len(group["params"]))]
        for name, parameter, key in zip(names, group["params"], other["params"], strict=True):
            state = saved["state"].get(key)
            if state is not None and not isinstance(state, Mapping):
                raise UserError(f"the state of {name} is {state!r}", f"it is not a state of {kind}")
            if state:
                check_tensors(kind, name, parameter, state, words)
        missing = sorted(set(options) - {"exclude", "differentiable"} - other.keys())  # the latter torch's, after unpickling
        if missing:
            raise UserError(f"the groups of this state have no {', '.join(missing)}", f"it is not a state of {kind}")
        _check_numbers(kind, other)


def check_of_all(kind: str, saved: Mapping[str, Any], of_all: Mapping[str, Any]) -> None:
    """Raise UserError if a saved group has another value for an option of the whole optimizer."""
    for option, value in of_all.items():
        if option in saved and _plain(saved[option]) != _plain(value):
            raise UserError(
                f"this state is of {kind}(..., {option}={saved[option]!r}), this {kind} has {option}={value!r}",
                "give it the same",
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def check_tensors(kind: str, name: str, parameter: Tensor, state: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise UserError unless a saved state has these words, each of the parameter's shape and sharding."""
    missing = [word for word in words if word not in state]
    if missing:
        raise UserError(
            f"the state of {name} has {', '.join(sorted(state)) or 'nothing'}, no {missing[0]}", f"it is not a state of {kind}"
        )
    for word in (*words, "master"):
        if word not in state or word == "step":
            continue
        if not isinstance(state[word], Tensor):
            raise UserError(f"the {word} of {name} is {state[word]!r}, no tensor", f"it is not a state of {kind}")
        if state[word].shape != parameter.shape:
            shape, wanted = (" x ".join(map(str, t.shape)) or "one number" for t in (state[word], parameter))
            raise UserError(
                f"the {word} of {name} is {shape}, the parameter {wanted}", "load the state of this network, of all its shards"
            )
        if _sharding(state[word]) != _sharding(parameter):
            here, there = ("a shard" if is_sharded(t) else "whole" for t in (state[word], parameter))
            raise UserError(
                f"the {word} of {name} is {'another shard' if here == there else here}, the parameter {there}",
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(..., full_state_dict=True) shards whole ones",
            )


def _sharding(tensor: Tensor) -> object:
    if not is_sharded(tensor):
        return None
    mesh = cast(Any, tensor).device_mesh.mesh
    return mesh.tolist(), tuple(cast(Any, tensor).placements)


def owned(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Copy a saved state for the parameter: on its device, in fp32 or better, a master only for 16-bit parameters."""
    wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    state = {key: value for key, value in state.items() if key != "master" or parameter.dtype in LOW}
    return {
        key: torch.as_tensor(value).detach().to(parameter.device, torch.float32 if key == "step" else wide, copy=True)
        if isinstance(value, Tensor) or key == "step"
        else value
        for key, value in state.items()
    }


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
