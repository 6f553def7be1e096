"""Where a trace stopped: operation, module, line, and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.workload import Workload


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        if x.mean() > 0:
            x = -x
        return x


class Masks(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)[x > 0]


class Lists(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) * float(x.tolist()[0][0])


class Breaks(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) @ torch.empty(5, 5)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            Branches,
            r"\.item\(\), bool\(\) .* in inner\.0 \(Branches\), test_trace_error\.py line \d+: if x\.mean\(\) > 0:.*shapes",
        ),
        (Masks, r"a boolean mask in inner\.0 \(Masks\), .*return self\.mix\(x\)\[x > 0\].*keep the shape"),
        (Lists, r"decides by the values .*line \d+: return self\.mix\(x\) \* float"),
        (Breaks, r"fails on the example input: RuntimeError.*\(inner\.0 \(Breaks\), .*line \d+: return self\.mix\(x\) @ torch"),
    ],
)
def test_the_operation_the_module_and_the_line_are_named(network: type[nn.Module], words: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(network())

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.inner(x)
            return result

    with pytest.raises(UserError, match=words):
        Workload.trace(Outer, torch.empty(1, 4))
