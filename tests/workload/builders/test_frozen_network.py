"""A frozen network as one layer."""

from __future__ import annotations

import pytest

from paceline.workload import Workload
from paceline.workload.builders.frozen_network import frozen_layer
from paceline.workload.layers import FROZEN


@pytest.mark.parametrize("name", ["gpt2", "lenet5"])
def test_all_work_of_the_forward_pass_but_the_vocabularys_is_kept(name: str) -> None:
    table = Workload.named(name)
    layer = frozen_layer("encoders.mine", table)
    inside = [x for x in table.layers if not x.is_logits]
    assert (layer.kind, layer.activation_bytes, layer.flops_backward) == (FROZEN, 0.0, 0.0)
    assert layer.flops_forward == sum(x.flops_forward for x in inside)
    forward = [o for x in inside for o in x.operations if not o.backward]
    for field in ("calls", "bytes", "fixed_bytes"):
        assert sum(getattr(o, field) for o in layer.operations) == pytest.approx(sum(getattr(o, field) for o in forward))


def test_equal_blocks_are_operations_with_more_calls() -> None:
    layer = frozen_layer("encoders.mine", Workload.named("gpt2"))
    products = [o for o in layer.operations if o.kind == "matmul"]
    assert sum(o.calls for o in products) == 12 * 4 and len(products) == 4
