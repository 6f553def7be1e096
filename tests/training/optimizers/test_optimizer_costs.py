"""Optimizers as they run: bytes of state, values moved, kernels and FLOPs of real steps against their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from paceline.prediction.passes.orthogonal import matrix_elements, newton_schulz_flops
from paceline.prediction.step.optimizer_state import state_bytes
from paceline.strategy import Strategy
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.workload import Workload
from paceline.workload.layers import Parameter
from prediction_toys import make_workload

SHAPES = {
    "embed.weight": (96, 32),
    "layers.0.up.weight": (128, 32),
    "layers.0.down.weight": (32, 128),
    "layers.0.up.bias": (128,),
    "layers.1.square.weight": (32, 32),
    "head.weight": (96, 32),
}
Made = Callable[[list[tuple[str, nn.Parameter]]], list[torch.optim.Optimizer]]


def adafactor(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    library = pytest.importorskip("transformers.optimization", reason="needs transformers")
    made: torch.optim.Optimizer = library.Adafactor(parameters, lr=0.1, relative_step=False, scale_parameter=False)
    return made


def hybrid(named: list[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of blocks, AdamW for all else: what its authors say."""
    matrices = [p for name, p in named if name.startswith("layers.") and p.ndim == 2]
    rest = [p for name, p in named if not name.startswith("layers.") or p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.1), torch.optim.AdamW(rest, lr=0.1)]


NEEDS_TRANSFORMERS = {"adafactor"}  # seconds to import
MADE: dict[str, Made] = {
    "sgd": lambda named: [torch.optim.SGD([p for _, p in named], lr=0.1)],
    "momentum": lambda named: [torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)],
    "adam": lambda named: [torch.optim.Adam([p for _, p in named], lr=0.1)],
    "adamw": lambda named: [torch.optim.AdamW([p for _, p in named], lr=0.1)],
    "adafactor": lambda named: [adafactor([p for _, p in named])],
    "muon": hybrid,
}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in NEEDS_TRANSFORMERS else []) for name in names]


def network(shapes: dict[str, tuple[int, ...]]) -> Workload:
    parameters = tuple(Parameter(name=name, shape=shape, layer=0, ready=0) for name, shape in shapes.items())
    return replace(make_workload(), parameters=parameters)


def tensors(dtype: torch.dtype, shapes: dict[str, tuple[int, ...]] = SHAPES) -> list[tuple[str, nn.Parameter]]:
    named = [(name, nn.Parameter(torch.randn(shape).to(dtype))) for name, shape in shapes.items()]
    for _, parameter in named:
        parameter.grad = torch.randn_like(parameter)
    return named


def kept(optimizers: list[torch.optim.Optimizer]) -> int:
    """Bytes of state without the counters of steps."""
    values = (v for o in optimizers for state in o.state.values() for name, v in state.items() if name != "step")
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor) and v.numel() > 1)


@pytest.mark.parametrize("stored", ["", "bf16"])
@pytest.mark.parametrize("name", marked(MADE))
def test_state_has_the_bytes_of_a_real_optimizer(name: str, stored: str) -> None:
    optimizers = MADE[name](tensors(torch.bfloat16 if stored else torch.float32))
    for optimizer in optimizers:
        optimizer.step()
    net = network(SHAPES)
    strategy = Strategy.of(world_size=1, global_batch_size=8, optimizer=name, precision="bf16", stored_weights=stored)
    assert state_bytes(net, strategy, strategy.weight_update.width * net.num_parameters) == kept(optimizers)


def test_eight_bit_state_is_that_of_blocks_and_small_tensors_keep_fp32() -> None:
    net = network({"a": (64, 64), "b": (4095,), "c": (300, 300)})
    strategy = Strategy.of(world_size=1, global_batch_size=8, optimizer="adamw_8bit")
    by_hand = 2 * (4096 + 4 * 16) + 2 * 4 * 4095 + 2 * (90_000 + 4 * 352)  # 90,000 values are 351.6 blocks
    assert state_bytes(net, strategy, 0.0) == by_hand


SCALARS = 4096
"""Bytes of the largest operation on scalars or on sums of rows."""


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write, and their number, without views and scalars."""

    moved, kernels = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func.namespace == "profiler":
            return result
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if result is None:  # an operation in place on many tensors
            tensors += args[0]
        size = sum(x.numel() * x.element_size() for x in tensors)
        if size > SCALARS:
            self.moved, self.kernels = self.moved + size, self.kernels + 1
        return result


def ways(name: str) -> Iterator[Callable[[list[nn.Parameter]], torch.optim.Optimizer]]:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (torch.optim.SGD, {}),
        "momentum": (torch.optim.SGD, {"momentum": 0.9}),
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
    }
    if name in kinds:
        kind, options = kinds[name]
        yield from (lambda p, many=many: kind(p, lr=0.1, foreach=many, **options) for many in (False, True))
    elif name == "adafactor":
        yield adafactor
    else:
        yield lambda p: torch.optim.Muon(p, lr=0.1, ns_steps=0)


@pytest.mark.parametrize("name", marked(name for name, of in OPTIMIZERS.items() if of.separate[0]))
def test_separate_operations_move_what_is_described(name: str) -> None:
    for make in ways(name):
        ((_, parameter),) = tensors(torch.float32, {"a": (512, 512)})
        optimizer = make([parameter])
        optimizer.step()
        with Traffic() as counted:
            optimizer.step()
        words, kernels = OPTIMIZERS[name].separate
        assert counted.moved / 4 / parameter.numel() == pytest.approx(words, abs=0.55) and counted.kernels == kernels


def test_orthogonalizing_takes_the_flops_that_pytorch_counts() -> None:
    named = tensors(torch.float32)
    muon, _ = hybrid(named)
    with FlopCounterMode(display=False) as counter:
        muon.step()
    net = network(SHAPES)
    assert newton_schulz_flops(net) == counter.get_total_flops()
    owned = {id(p) for group in muon.param_groups for p in group["params"]}
    assert matrix_elements(net) == sum(p.numel() for _, p in named if id(p) in owned)
    experts = network({"layers.0.experts.w1": (4, 128, 32)})  # as many matrices as experts
    assert np.isclose(newton_schulz_flops(experts), 4 * newton_schulz_flops(network({"layers.0.w1": (128, 32)})))
