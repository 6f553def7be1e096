"""Options of Muon's parameter groups, and checks of them and of states to load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import UserError, unknown
from paceline.names import did_you_mean
from paceline.training.optimizers.checks import LOW, check_tensors, in_range
from paceline.training.optimizers.muon.matrices import SCALES
from paceline.training.optimizers.muon.newton_schulz import PRECISIONS

MUON, ADAMW = "muon", "adamw"
ALGORITHMS = (MUON, ADAMW)
WORDS: Mapping[str, tuple[str, ...]] = {MUON: ("momentum_buffer",), ADAMW: ("exp_avg", "exp_avg_sq")}
"""State of each algorithm, of the parameter's shape; AdamW has ``step`` too."""
_RENAMED = {"adamw_lr": "lr", "adamw_betas": "betas", "adamw_eps": "eps", "adamw_weight_decay": "weight_decay"}
_NOTES = ("params", "param_names", "algorithm", "initial_lr", "name")
_TYPES = (torch.float64, torch.float32, *LOW)

_GROUPED = 'give the group an algorithm, "muon" or "adamw", or the named parameters'
_UNGROUPED = 'pass the model or its named_parameters(), or give each group an algorithm, "muon" or "adamw"'

Group = dict[str, Any]


def as_groups(params: Any, needs_names: bool) -> list[Group]:
    """Return groups whose ``params`` are names with tensors.

    Args:
        needs_names: whether a rule of names divides groups without ``algorithm``.

    Raises:
        UserError: no parameters, or parameters without names.
    """
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise UserError(f"Muon got {type(params).__name__} for parameters", "pass the model, or its named_parameters()")
    members = list(params)
    if not members:
        raise UserError("Muon got no parameters", "pass the model, or its named_parameters()")
    groups = members if isinstance(members[0], Mapping) else [{"params": members}]
    found = []
    for index, group in enumerate(groups):
        tensors = group["params"]
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        algorithm = group.get("algorithm", "")
        if algorithm and algorithm not in ALGORITHMS:
            raise unknown("algorithm", algorithm, ALGORITHMS)
        if tensors and isinstance(tensors[0], Tensor):
            if needs_names and not algorithm:
                raise UserError(
                    "Muon divides parameters by name, and these have none",
                    _GROUPED if isinstance(members[0], Mapping) else _UNGROUPED,
                )
            tensors = [(f"{index}.{i}", tensor) for i, tensor in enumerate(tensors)]
        for name, tensor in tensors:
            if tensor.dtype not in _TYPES:
                raise UserError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}", "Muon takes fp64, fp32, bf16 and fp16")
            if getattr(tensor, "_is_flat_param", False) or getattr(tensor, "_fsdp_flattened", False):
                raise UserError(
                    f"{name} belongs to FullyShardedDataParallel, which flattens matrices",
                    "use torch.distributed.fsdp.fully_shard",
                )
        found.append({**group, "params": tensors})
    return found


def options_of_part(algorithm: str, group: Mapping[str, Any], usual: Mapping[str, Any], rate: float | Tensor | None) -> Group:
    """Return the options of one algorithm's part of a user's group.

    Args:
        usual: the optimizer's options of this algorithm.
        rate: rate of the rest if neither the group nor the optimizer has one.

    Raises:
        UserError: an option that does not exist, or whose value is illegal.
    """
    stated = {key: value for key, value in group.items() if key not in _NOTES}
    renamed = {_RENAMED[key]: value for key, value in stated.items() if key in _RENAMED}
    options = dict(usual)
    if algorithm == MUON or group.get("algorithm"):
        options |= {key: value for key, value in stated.items() if key in usual}
    elif "weight_decay" in stated:
        options["weight_decay"] = stated["weight_decay"]
    if algorithm == ADAMW:
        options |= renamed
        if options["lr"] is None:
            options["lr"] = rate
        if options["lr"] is None:
            raise UserError(
                "adamw_lr has no default with adjust_lr_fn='original'", "give it, such as adamw_lr=3e-4 next to lr=0.02"
            )
    check_options(algorithm, options)
    return options


def check_keys(group: Mapping[str, Any], legal: Iterable[str]) -> None:
    """Raise UserError for a key of a user's group that is no option."""
    known = [*legal, *_RENAMED]
    for key in group.keys() - set(known) - set(_NOTES):
        raise UserError(f"Muon: a group has {key!r}, which is no option", f"nearest: {', '.join(did_you_mean(key, known, 2))}")


def check_options(algorithm: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for an illegal value of an option of one algorithm."""
    if isinstance(options["lr"], Tensor):
        if options["lr"].numel() != 1:
            raise UserError(f"Muon: lr is a tensor of {options['lr'].numel()} numbers", "give one number")
    else:
        in_range("Muon", "lr", options["lr"], 0.0, math.inf)
    in_range("Muon", "weight_decay", options["weight_decay"], 0.0, math.inf)
    in_range("Muon", "eps", options["eps"], 0.0, math.inf)
    if algorithm == ADAMW:
        if not isinstance(options["betas"], Sequence) or len(options["betas"]) != 2:
            raise UserError(f"Muon: adamw_betas={options['betas']!r}", "give two numbers, such as (0.9, 0.95)")
        for beta in options["betas"]:
            in_range("Muon", "adamw_betas", beta, 0.0, 1.0)
        return
    in_range("Muon", "momentum", options["momentum"], 0.0, 1.0)
    for name, legal in (("adjust_lr_fn", SCALES), ("precision", PRECISIONS)):
        if options[name] not in legal:
            raise unknown(name, str(options[name]), legal)
    if not isinstance(options["nesterov"], bool):
        raise UserError(f"Muon: nesterov={options['nesterov']!r}; legal: True and False")
    if isinstance(options["ns_steps"], bool) or not isinstance(options["ns_steps"], int) or not 1 <= options["ns_steps"] < 100:
        raise UserError(f"Muon: ns_steps={options['ns_steps']!r}", "give a whole number from 1 to 99")
    if len(options["ns_coefficients"]) != 3:
        raise UserError(f"Muon: ns_coefficients={options['ns_coefficients']!r}", "give three numbers")


def check_state(groups: Sequence[Group], saved: Mapping[str, Any]) -> None:
    """Raise UserError unless ``saved`` is Muon's state of the same groups, algorithms and shapes."""
    if not isinstance(saved["state"], Mapping) or not isinstance(saved["param_groups"], Sequence):
        raise UserError("this is no optimizer's state", "give what state_dict() returned")
    sizes = [len(group["params"]) for group in groups]
    given = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != given:
        raise UserError(f"this state has parameter groups of {given} tensors; this Muon has {sizes}", "build the same first")
    for group, other in zip(groups, saved["param_groups"], strict=True):
        algorithm = group["algorithm"]
        if other.get("algorithm") != algorithm:
            raise UserError(
                f"a group of this state is of {other.get('algorithm', 'another optimizer')}, here of {algorithm}",
                "use the rule with which it was saved",
            )
        check_options(algorithm, other)
        words = (*WORDS[algorithm], "step") if algorithm == ADAMW else WORDS[algorithm]
        for name, parameter, key in zip(group["param_names"], group["params"], other["params"], strict=True):
            state = saved["state"].get(key)
            if state:
                check_tensors("Muon", name, parameter, state, words)
