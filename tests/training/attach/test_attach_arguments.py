"""Every argument of ``attach``, at a value that is not its default, changes what a step does or is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from distributed import launch_once
from each_row import each_row
from paceline.errors import UserError
from paceline.strategy import DenseRule, GradientExchange
from paceline.training.attach.attach import attach
from paceline.training.attach.attach_arguments import EXCHANGE, RUN
from paceline.training.attach.attach_options import AttachOptions


class Scaler:
    """Stand-in for a ``torch.amp.GradScaler``, with the attributes that ``attach`` reads."""

    def get_scale(self) -> float:
        return 4.0


def sent(hook: Any, model: DDP) -> int:
    return int(hook.meter.sent_bytes)


def collectives(hook: Any, model: DDP) -> list[str]:
    return sorted({event.name for event in hook.meter.events if event.lane == "network"})


def gradient(hook: Any, model: DDP) -> list[float]:
    return [float(x) for x in model.module[0].weight.grad.reshape(-1)]


def drift(hook: Any, model: DDP) -> str:
    with torch.no_grad():
        model.module[0].weight += torch.distributed.get_rank()
    try:
        step(model)
    except RuntimeError as error:
        return str(error)
    return "no error"


def group_timeout(hook: Any, model: DDP) -> float:
    return float(hook.wire.group._get_backend(torch.device("cpu")).options._timeout.total_seconds())


def factor(hook: Any, model: DDP) -> float:
    return float(hook.state_dict()["factor"])


def kept_type(hook: Any, model: DDP) -> str:
    return str(next(iter(hook.state_dict()["feedback"]["residual"].values())).dtype)


def lies_on_host(hook: Any, model: DDP) -> bool:
    return bool(hook._setup.feedback.keeping.on_host)


def noise(hook: Any, model: DDP) -> bool:
    return hook.noise is not None and hook.noise.scale is not None


def tried(hook: Any, model: DDP) -> list[str]:
    return [str(exchange) for exchange in hook._auto.exchanges]


Case = tuple[dict[str, Any], Any, Callable[[Any, DDP], Any]]
SCALER = Scaler()
EXECUTED: dict[str, Case] = {  # other arguments, the value, and what it changes
    "compression": ({}, "int8", sent),
    "compression, a GradientExchange": ({}, GradientExchange("int8", "ring"), collectives),
    "exchange": ({}, "ring", collectives),
    "seed": ({}, 7, gradient),
    "clip": ({}, 1.0, gradient),
    "min_elements": ({}, 10, sent),
    "dense": ({}, ["0.*"], sent),
    "dense_rule": ({}, DenseRule(min_elements=10), sent),
    "ranks_per_node": ({"exchange": "hierarchical"}, 1, collectives),
    "compress_pull": ({"compression": "int8"}, False, sent),
    "residual_bits": ({"compression": "sign"}, 16, kept_type),
    "residuals_at": ({"compression": "sign"}, "host", lies_on_host),
    "dense_bits": ({}, 16, sent),
    "check_every": ({}, 1, drift),
    "timeout_s": ({}, 77, group_timeout),
    "grad_scaler": ({"compression": "topk"}, SCALER, factor),
    "candidates": ({"compression": "auto"}, ["sign"], tried),
    "noise_scale": ({"compression": "dense"}, True, noise),
    "options": ({"compression": "topk"}, {"density": 0.1}, sent),
}
SAME: dict[str, Any] = {"ranks_per_node": 2, "options": {"density": 0.01}}  # the default where the launcher or a codec has it

VALUE = GradientExchange("int8")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "compression": ({"compression": 3}, "compression=3; give a name or a GradientExchange"),
    "compression None": ({"compression": None}, "compression=None; give a name or a GradientExchange"),
    "exchange": ({"exchange": 3}, "exchange=3; give a name"),
    "exchange of a value": ({"compression": VALUE, "exchange": "ring"}, "exchange belongs to the GradientExchange; "),
    "clip of a value": ({"compression": VALUE, "clip": 1.0}, "clip belongs to the GradientExchange; "),
    "min_elements of a value": ({"compression": VALUE, "min_elements": 1}, "min_elements belongs to the GradientExchange; "),
    "dense of a value": ({"compression": VALUE, "dense": ["a"]}, "dense belongs to the GradientExchange; "),
    "ranks of a value": ({"compression": VALUE, "ranks_per_node": 2}, "ranks_per_node belongs to the GradientExchange; "),
    "pull of a value": ({"compression": VALUE, "compress_pull": False}, "compress_pull belongs to the GradientExchange; "),
    "option of a value": ({"compression": VALUE, "block": 64}, "block belongs to the GradientExchange; "),
    "seed": ({"seed": "1"}, "seed='1'; give a whole number"),
    "seed True": ({"seed": True}, "seed=True; give a whole number"),
    "clip": ({"clip": [1]}, "clip=[1]; give standard deviations"),
    "clip of int8": ({"compression": "int8", "clip": 1.0}, "int8 does not clip"),
    "min_elements": ({"min_elements": 1.5}, "min_elements=1.5; give a whole number"),
    "dense": ({"dense": [3]}, "dense=[3]; give a list of patterns"),
    "dense_rule": ({"dense_rule": 10}, "dense_rule=10; give a paceline.strategy.DenseRule"),
    "servers by name": ({"exchange": "parameter_server", "servers": 2}, "training runs one server, not 2"),
    "a slip": ({"check_evry": 1}, "attach takes no check_evry; did you mean check_every?"),
    "dense None": ({"dense": None}, "dense=None; give a list of patterns"),
    "ranks_per_node": ({"ranks_per_node": "2"}, "ranks_per_node='2'; give a whole number"),
    "ranks_per_node of sharded": ({"ranks_per_node": 2}, "exchange 'sharded' has no nodes"),
    "compress_pull": ({"compress_pull": "no"}, "compress_pull='no'; give True or False"),
    "compress_pull of a ring": ({"exchange": "ring", "compress_pull": False}, "exchange 'ring' has no pull"),
    "check_every": ({"check_every": 2.5}, "check_every=2.5; give a whole number"),
    "timeout_s": ({"timeout_s": "5"}, "timeout_s='5'; give seconds"),
    "grad_scaler": ({"grad_scaler": 4.0}, "grad_scaler=4.0; give a torch.amp.GradScaler"),
    "candidates": ({"compression": "auto", "candidates": "int8"}, "candidates='int8'; give a list of names"),
    "candidates of numbers": ({"compression": "auto", "candidates": [3]}, "candidates=[3]; give a list of names"),
    "candidates of terngrad": ({"candidates": ["int8"]}, "terngrad has no candidates"),
    "noise_scale": ({"noise_scale": "yes"}, "noise_scale='yes'; give True or False"),
    "gather_bits": ({"gather_bits": 8}, "DistributedDataParallel gathers no weights"),
    "noise_scale of powersgd": ({"compression": "powersgd", "noise_scale": True}, "powersgd gives no gradients"),
    "options": ({"density": 0.1}, "terngrad takes no option"),
    "option": ({"compression": "topk", "density": "much"}, "density"),
    "options of auto": ({"compression": "auto", "density": 0.1}, "auto chooses exchange, place and options itself"),
    "residual_bits": ({"compression": "sign", "residual_bits": 8}, "residual_bits=8; give 32 for fp32 or 16 for bfloat16"),
    "residual_bits True": ({"compression": "sign", "residual_bits": True}, "residual_bits=True; give 32"),
    "residual_bits of terngrad": ({"residual_bits": 16}, "terngrad keeps no residuals here; leave residual_bits out"),
    "residual_bits of a value": (
        {"compression": VALUE, "residual_bits": 16},
        "residual_bits belongs to the GradientExchange; ",
    ),
    "residual_bits of auto": ({"compression": "auto", "residual_bits": 16}, "auto compares exchanges as they usually are"),
    "residuals_at": ({"compression": "sign", "residuals_at": "disk"}, "unknown place of residuals 'disk'"),
    "residuals_at 3": ({"compression": "sign", "residuals_at": 3}, "residuals_at=3; give a name"),
    "residuals_at of int8": (
        {"compression": "int8", "residuals_at": "host"},
        "int8 keeps no residuals here; leave residuals_at",
    ),
    "dense_bits": ({"dense_bits": "16"}, "dense_bits='16'; give 32"),
    "dense_bits of dense": ({"compression": "dense", "dense_bits": 16}, "name compression bf16"),
    "dense_bits of bf16": ({"compression": "bf16", "dense_bits": 16}, "bf16 sends no fp32 here"),
    "dense_bits of powersgd": ({"compression": "powersgd", "dense_bits": 16}, "give residual_bits=16 too"),
    "codec_at": ({"codec_at": 3}, "codec_at=3; give a name"),
    "codec_at of nothing": ({"codec_at": "cpu"}, "unknown place of the codec 'cpu'"),
    "codec_at of a value": ({"compression": VALUE, "codec_at": "host"}, "codec_at belongs to the GradientExchange; "),
    "codec_at nic": ({"compression": "inceptionn", "exchange": "ring", "codec_at": "nic"}, "paceline lab up --nic inceptionn"),
    "codec_at gpu": ({"codec_at": "gpu"}, "training runs it where the gradients live"),
    "a switch": ({"exchange": "switch"}, "paceline lab up --switch"),
    "servers": ({"compression": GradientExchange("int8", "parameter_server", servers=2)}, "training runs one server, not 2"),
    "switch": ({"exchange": "switch"}, "paceline lab up --switch"),
    "card": ({"compression": GradientExchange("inceptionn", "ring", codec_at="nic")}, "paceline lab up --nic"),
    "gpu": ({"compression": GradientExchange("int8", codec_at="gpu")}, "where the gradients live, here on the host"),
}


def step(model: DDP) -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
    model(x).square().mean().backward()


def model_of() -> DDP:
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 20), nn.Linear(20, 1)))


def both(rank: int, workers: int) -> dict[str, Any]:
    """Return the effect of each argument at its default and at another value, and the refusals of ``attach``."""
    seen: dict[str, Any] = {}
    looks: dict[str, Any] = {}
    for name, (others, value, look) in EXECUTED.items():
        parameter, results = name.partition(",")[0], []
        for given in (SAME.get(name), value):
            keywords = {} if given is None else given if parameter == "options" else {parameter: given}
            case = f"{others} {look.__name__}" if given is None else f"{name} {given}"
            if case not in looks:
                model = model_of()
                hook = attach(model, **{**others, **keywords})
                for _ in range(2):
                    model.zero_grad()
                    hook.meter.begin_step()
                    step(model)
                looks[case] = look(hook, model)
            results.append(looks[case])
        seen[name] = results
    seen["values"] = as_a_value()
    seen["refused"] = {}
    model = model_of()
    for name, (keywords, _) in REFUSED.items():
        try:
            attach(model, **keywords)
            seen["refused"][name] = "no error"
        except UserError as error:
            seen["refused"][name] = str(error)
    seen["models"] = []
    for model in (None, 3, nn.Linear(2, 2)):
        try:
            attach(model)  # type: ignore[arg-type]
        except UserError as error:
            seen["models"].append(str(error))
    return seen


@pytest.mark.parametrize("name", EXECUTED)
def test_an_argument_that_is_given_changes_what_a_step_does(name: str) -> None:
    for seen in launch_once(both, 2):
        default, given = seen[name]
        assert default != given


@each_row("name", REFUSED)
def test_what_cannot_be_executed_is_refused(name: str) -> None:
    for seen in launch_once(both, 2):
        assert REFUSED[name][1] in seen["refused"][name]
        assert "\n" not in seen["refused"][name]


def test_every_argument_is_tried() -> None:
    arguments = ["compression", "options", *EXCHANGE, *RUN]
    # Cards are in tests/training/test_lab_cards.py, FSDP2 in test_weight_gather.py; more servers than one are refused.
    elsewhere = {"codec_at", "gather_bits", "gather_format", "servers"}
    assert set(arguments) == {name.partition(",")[0] for name in EXECUTED} | elsewhere
    assert all(any(name.startswith(argument[:6]) for name in REFUSED) for argument in arguments)


def test_another_model_than_ddps_is_refused() -> None:
    for seen in launch_once(both, 2):
        assert [told.partition(";")[0] for told in seen["models"]] == [
            f"attach takes a model in DistributedDataParallel or sharded by fully_shard, got {name}"
            for name in ("NoneType", "int", "Linear")
        ]


def as_a_value() -> dict[str, Any]:
    """One GradientExchange, and keywords that say the same."""
    rule = DenseRule(min_elements=10, last_layer=True, names=("2.*",))
    pairs = {
        "int8": (
            GradientExchange("int8", "hierarchical", {"block": 64}, compress_pull=False, ranks_per_node=2),
            {"compression": "int8", "exchange": "hierarchical", "block": 64, "compress_pull": False, "ranks_per_node": 2},
        ),
        "terngrad": (
            GradientExchange("terngrad", clip=1.5, dense_rule=rule),
            {"compression": "terngrad", "clip": 1.5, "min_elements": 10, "dense": ["2.*"]},
        ),
        "powersgd": (GradientExchange("powersgd", options={"rank": 1}), {"compression": "powersgd", "rank": 1}),
    }
    seen: dict[str, Any] = {}
    for name, (value, keywords) in pairs.items():
        results = []
        for options in ({"compression": value}, keywords):
            model = model_of()
            hook = attach(model, **options)
            for _ in range(3):
                model.zero_grad()
                step(model)
            results.append((gradient(hook, model), hook.gradient_exchange == value, str(hook)))
        seen[name] = results
    return seen


@pytest.mark.parametrize("name", ["int8", "terngrad", "powersgd"])
def test_keywords_build_the_value_that_can_be_given_too(name: str) -> None:
    for seen in launch_once(both, 2):
        value, keywords = seen["values"][name]
        assert value == keywords and value[1]
        assert np.any(value[0])


def test_attach_without_torch_says_what_to_install() -> None:
    source = str(Path(paceline.__file__).parents[1])
    code = f"""
import sys
sys.path.insert(0, {source!r})
sys.modules["torch"] = None
import paceline
for name in ("attach", "LARS"):
    try:
        getattr(paceline, name)(None)
    except paceline.UserError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.splitlines() == [
        "paceline.attach needs PyTorch; install it: pip install 'paceline[train]'",
        "paceline.LARS needs PyTorch; install it: pip install 'paceline[train]'",
    ], done.stderr


def test_a_silent_link_is_given_up_after_minutes() -> None:
    assert 60 <= AttachOptions().timeout_s <= 600
