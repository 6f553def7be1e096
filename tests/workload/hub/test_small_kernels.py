"""Norms and activations that a module spells out are one kernel each."""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from paceline.workload.hub.kernels import builder


class LlamaRMSNorm(nn.Module):
    def __init__(self, width: int, trained: bool = True) -> None:
        super().__init__()
        if trained:
            self.weight = nn.Parameter(torch.empty(width, device="meta"))


class QuickGELUActivation(nn.Module):
    pass


def test_a_norm_and_an_activation_are_one_kernel_each_with_the_module_s_own_weights() -> None:
    x = torch.empty(2, 10, 8, device="meta")
    for module, weights in ((LlamaRMSNorm(8), 8), (LlamaRMSNorm(8, trained=False), 0), (QuickGELUActivation(), 0)):
        own = builder(module)
        assert own is not None and own.saves
        (layer,) = own.build(module, (x,), {}, 2) or []
        assert sum(prod(shape) for _, shape in layer.weights) == weights
        assert [o.calls for o in layer.operations] == [1, 1]
        assert sum(o.bytes for o in layer.operations if not o.backward) >= 2 * 4 * 80  # one sample is read and written
    gated = builder(type("SomeRMSNormGated", (LlamaRMSNorm,), {})(8))
    assert gated is not None
    (layer,) = gated.build(LlamaRMSNorm(8), (x, x), {}, 2) or []
    assert layer.kind == "GatedRMSNorm"


def test_norms_of_torch_and_of_several_modules_are_traced() -> None:
    class AdaLayerNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8, device="meta")

    x = torch.empty(2, 10, 8, device="meta")
    for module in (nn.LayerNorm(8, device="meta"), AdaLayerNorm()):
        own = builder(module)
        assert own is None or own.build(module, (x,), {}, 2) is None
