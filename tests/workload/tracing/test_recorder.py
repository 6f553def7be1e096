"""What a trace cannot count, it reports; what it cannot see, it refuses in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.workload import Workload


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fft.rfft(self.mix(x)).real
        return torch.linalg.inv(x[:, :4, :4] + torch.eye(4))


def test_operations_without_a_formula_are_reported() -> None:
    coverage = Workload.trace(Spectral, torch.empty(1, 4, 8)).coverage
    assert coverage.unknown["aten._fft_r2c"] == 1 and coverage.unknown["aten.linalg_inv_ex"] == 1
    assert coverage.known == coverage.ops - sum(coverage.unknown.values())
    assert 0 < coverage.share < 1


def test_a_product_that_torch_itself_counts_as_nothing_is_reported() -> None:
    coverage = Workload.trace(nn.Bilinear(4, 4, 5), (torch.empty(1, 4), torch.empty(1, 4))).coverage
    assert coverage.unknown == {"aten._trilinear": 2}


class LowRank(nn.Module):
    """The product of the factors costs the same for any batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.empty(8, 2)), nn.Parameter(torch.empty(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() @ (self.left @ self.right)


def test_flops_that_do_not_grow_with_the_batch_are_reported() -> None:
    table = Workload.trace(LowRank, torch.empty(1, 8))
    ((label, calls),) = table.coverage.unknown.items()
    assert label == "aten.mm (not in proportion to the batch)" and calls >= 2
    assert [entry.name for entry in table.layers] == ["(model)", "loss"]


class Contrastive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encode(x)
        return x @ x.T


def test_flops_quadratic_in_the_batch_are_reported() -> None:
    unknown = Workload.trace(Contrastive, torch.empty(1, 8)).coverage.unknown
    assert unknown == {"aten.mm (not in proportion to the batch)": 3}


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        return x if x.sum().item() > 0 else -x


class Selects(Decides):
    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        return x[x > 0]


@pytest.mark.parametrize("network", [Decides, Selects])
def test_control_flow_on_values_is_an_error_that_says_so(network: type[nn.Module]) -> None:
    with pytest.raises(UserError, match=r"decides by the values of a tensor.*torch\.where"):
        Workload.trace(network, torch.empty(1, 4))


@pytest.mark.parametrize(
    ("network", "inputs", "loss", "message"),
    [
        (lambda: nn.Linear(4, 4), None, "mean", "no example input for .*return \\(module, example_batch\\)"),
        (lambda: nn.Linear(4, 4), torch.empty(1, 5), "mean", "fails on the example input: RuntimeError: a and b"),
        (lambda: nn.Linear(4, 4), torch.tensor(1.0), "mean", "no dimensions"),
        (lambda: nn.ReLU(), torch.empty(1, 4), "mean", "nothing to train"),
        (lambda: nn.Linear(4, 4), torch.empty(1, 4), "hinge", "unknown loss 'hinge'"),
        (lambda: 3, torch.empty(1, 4), "mean", "returned int, not an nn.Module"),
        (lambda: 1 / 0, torch.empty(1, 4), "mean", "ZeroDivisionError"),
        (lambda: nn.LazyLinear(4), torch.empty(1, 4), "mean", r"the module itself \(LazyLinear\) has no shape.*example batch"),
        (lambda: nn.Sequential(nn.ReLU(), nn.LazyConv2d(4, 3)), torch.empty(1, 3, 8, 8), "mean", r"layer 1 \(LazyConv2d\)"),
        (lambda: nn.Flatten(0), torch.empty(1, 4), lambda out: (out > 0).any(), "nothing to train"),
    ],
)
def test_what_cannot_be_traced_is_a_user_error(network: object, inputs: object, loss: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Workload.trace(network, inputs, loss=loss)  # type: ignore[arg-type]


def test_a_lazy_layer_that_has_seen_an_input_is_a_layer() -> None:
    def build() -> nn.Module:
        layer = nn.LazyLinear(4)
        layer(torch.zeros(1, 5))
        return layer

    assert Workload.trace(build, torch.zeros(2, 5)).num_parameters == 24
