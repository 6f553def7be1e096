"""Work of adapters as that of a module with adapters, and what they keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import Predictor, predict
from paceline.workload import LoRA, Workload
from paceline.workload.builders.transformer import llama

H, KV, F, LAYERS = 4096, 1024, 14336, 32
SIZES = {"q_proj": H + H, "k_proj": H + KV, "v_proj": H + KV, "o_proj": H + H, "gate_proj": H + F, "up_proj": H + F}


class Adapted(nn.Module):
    """A frozen product and its adapter, as PEFT computes it (``tuners/lora/layer.py``)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + self.up(self.down(self.drop(x))) * 2.0
        return result


class Block(nn.Module):
    """A feed-forward network behind a trained layer, so that all gradients of inputs are needed."""

    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24).requires_grad_(not adapted)
        self.expand: nn.Module = Adapted(24, 40, 4) if adapted else nn.Linear(24, 40, bias=False)
        self.contract: nn.Module = Adapted(40, 24, 4) if adapted else nn.Linear(40, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.contract(nn.functional.gelu(self.expand(self.norm(x))))
        return result


def network(adapted: bool) -> nn.Module:
    return nn.Sequential(Block(adapted), Block(adapted), Block(adapted))


def test_work_is_that_of_a_module_with_adapters() -> None:
    mine = Workload.trace(lambda: network(False), torch.empty(2, 6, 24)).with_lora(LoRA(4, ("all-linear",), dropout=0.1))
    its = Workload.trace(lambda: network(True), torch.empty(2, 6, 24))
    assert mine.num_parameters == its.num_parameters == 3 * 4 * 2 * (24 + 40)
    assert mine.frozen == its.frozen and mine.flops_forward == its.flops_forward

    def backward(table: Workload, block: int) -> float:
        return sum(layer.flops_backward for layer in table.layers if layer.name.startswith(f"{block}."))

    assert backward(mine, 2) == backward(its, 2) and backward(mine, 1) == backward(its, 1)
    # In the first block nothing in front of the first adapter needs a gradient; the table computes it: a share of 1/layers.
    assert backward(mine, 0) - backward(its, 0) == 2 * 6 * 24 * (40 + 4)
    # There its norm keeps nothing, and dropout no mask.
    assert mine.activation_bytes - its.activation_bytes == 4 * 6 * (24 + 2) + 6 * 24

    def kernels(table: Workload, backward: bool) -> tuple[int, float]:
        own = [o for layer in table.layers if layer.name.startswith("2.") for o in layer.operations]
        found = [(o.calls, o.bytes) for o in own if o.kind == "memory" and o.backward is backward]
        return sum(calls for calls, _ in found), sum(moved for _, moved in found)

    assert kernels(mine, False) == kernels(its, False) and kernels(mine, True) == kernels(its, True)
    assert [p.name for p in mine.ready_order[:2]] == ["2.contract.up.weight", "2.contract.down.weight"]


def test_what_adapters_read_is_kept_once() -> None:
    shape = llama(2, 64, 4, 4, 96, 100)
    base = Workload.from_shape(shape, 32)
    alone, both = (base.with_lora(f"r=4,targets={names}") for names in ("v_proj", "q_proj+v_proj"))
    kept = {layer.name: layer.activation_bytes for layer in both.layers}
    x, inner = 4 * 32 * 64, 4 * 32 * 4
    assert kept["blocks.0.attention.query"] == x + inner and kept["blocks.0.attention.value"] == inner
    assert both.activation_bytes - alone.activation_bytes == 2 * inner
    assert both.kept_bytes("autocast") - alone.kept_bytes("autocast") == 2 * (x + inner) / 2  # a 16-bit copy for each
    assert both.activation_bytes < base.activation_bytes


def test_tuned_software_fuses_the_kernels_around_adapters() -> None:
    plain, dropped = (Workload.named("llama-3-8b", 512, lora=f"r=8{more}") for more in ("", ",dropout=0.05"))
    choices: dict[str, Any] = {"precision": "bf16", "global_batch_size": 2}
    ordinary, tuned = (
        [predict(net, "1 A100", predictor=Predictor(framework=level), **choices).step_time_s for net in (plain, dropped)]
        for level in ("ordinary", "tuned")
    )
    assert ordinary[1] > ordinary[0] and tuned[1] == tuned[0]


def test_dora_trains_magnitudes_and_reads_the_weights_once_more() -> None:
    plain, dora = (Workload.named("llama-3-8b", 64, lora=f"r=8,targets=all-linear{more}") for more in ("", ",dora=yes"))
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert dora.num_parameters - plain.num_parameters == outputs
    assert dora.flops_per_sample == plain.flops_per_sample  # the norm is bound by memory
    steps = [predict(net, "A100", precision="bf16", global_batch_size=1) for net in (plain, dora)]
    assert steps[1].step_time_s > 1.5 * steps[0].step_time_s and steps[1].memory_bytes > steps[0].memory_bytes


def test_dropout_makes_dora_multiply_twice() -> None:
    shape = llama(2, 64, 4, 4, 96, 100)
    base = Workload.from_shape(shape, 32)
    dora, dropped = (base.with_lora(f"r=4,targets=q_proj,dora=yes{more}") for more in ("", ",dropout=0.1"))
    assert dropped.flops_per_sample - dora.flops_per_sample == 2 * 2 * (2 * 32 * 64 * 64)
    assert dropped.frozen == dora.frozen


def test_experts_hold_their_weights_with_adapters_added() -> None:
    net = Workload.named("mixtral-8x7b", 64, lora="r=8,targets=experts")
    weights = 32 * 3 * 8 * 4096 * 14336
    none, full = (predict(net, "8 H200", precision="bf16", global_batch_size=8, recompute=r) for r in ("none", "full"))
    assert none.memory["unpacked weights"] == pytest.approx(2 * weights * (1 + 1 / 32))
    assert full.memory["unpacked weights"] == pytest.approx(2 * weights * 2 / 32)
