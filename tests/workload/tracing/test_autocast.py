"""What a trace says that networks keep under 16-bit autocast is what torch keeps on a CPU under its own autocast."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paceline.models import build
from paceline.models.sequences.bert import Bert
from paceline.models.sequences.gpt2 import Gpt2
from paceline.workload import Workload
from paceline.workload.tracing.autocast import NARROW, WIDE, WIDEST, autocast
from traced_layers import layer


def perceptron() -> nn.Module:
    """Normalised between its products, so that autocast copies."""
    parts = [nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 10)]
    return nn.Sequential(*parts)


def pictures(side: int, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, side, side)


TOKENS = torch.zeros((1, 64), dtype=torch.int64)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "lenet5": (lambda: build("lenet5"), pictures(28, 1), "cross_entropy"),
    "ncf": (lambda: build("ncf"), torch.zeros((1, 2), dtype=torch.int64), "mean"),
    "resnet-18": (lambda: build("resnet-18"), pictures(64), "cross_entropy"),
    "hdc": (lambda: build("hdc"), pictures(28, 1), "cross_entropy"),
    "cifar10-terngrad": (lambda: build("cifar10-terngrad"), pictures(24), "cross_entropy"),
    "resnet-18-cifar": (lambda: build("resnet-18-cifar"), pictures(16), "cross_entropy"),
    "resnet-50": (lambda: build("resnet-50"), pictures(64), "cross_entropy"),
    "googlenet": (lambda: build("googlenet"), pictures(224), "cross_entropy"),
    "yolov3": (lambda: build("yolov3"), pictures(64), "mean"),
    "vgg-a": (lambda: build("vgg-a"), pictures(224), "cross_entropy"),
    "bert": (lambda: Bert(2, 64, 4), TOKENS, "cross_entropy"),
    "gpt2": (lambda: Gpt2(2, 64, 4), TOKENS, "cross_entropy"),
    "perceptron": (perceptron, torch.randn(1, 64), "cross_entropy"),
}


GPU_ALONE = ("cifar10-terngrad", "googlenet", "perceptron")
"""Those that have an operation at fp32 on a GPU which has 16 bits on a CPU: a power, a normalisation of 16 bits."""
SLOW = ("yolov3", "vgg-a", "resnet-50", "resnet-18")
"""Larger than others with the same operations."""
WIDE_ON_CPU = ("avg_pool3d", *(name for name in WIDE if "loss" in name or "cross_entropy" in name or name == "prod"))


def kept_on_cpu(module: nn.Module, inputs: Tensor, loss: str) -> int:
    """Bytes that torch keeps for the backward pass, each storage once, without parameters and inputs."""
    own = {t.untyped_storage().data_ptr() for t in (inputs, *module.parameters(), *module.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        output = module(inputs)
        if loss == "mean":
            value = sum(t.mean() for t in (output if isinstance(output, tuple | list) else (output,)))
        else:
            logits = output.flatten(0, -2)
            value = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
    assert isinstance(value, Tensor) and value.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.everyday("lenet5", "ncf", "bert", "gpt2", "perceptron", others="long")
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.full] if x in SLOW else ()) for x in NETWORKS])
def test_a_trace_keeps_what_torch_keeps_under_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 %, ten networks by the lists of a GPU and three by those of a CPU.

    Dropout is off: on a CPU its masks are as wide as its input, on a GPU one byte an element.
    """
    if name in GPU_ALONE:
        monkeypatch.setattr("paceline.workload.tracing.autocast.WIDE", WIDE_ON_CPU)
    build_it, example, loss = NETWORKS[name]
    for module in ("bert", "gpt2"):
        monkeypatch.setattr(sys.modules[f"paceline.models.sequences.{module}"], "_DROPOUT", 0.0)
    network = build_it().train()
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    few, many = (kept_on_cpu(network, example.repeat(n, *[1] * (example.dim() - 1)), loss) for n in (2, 3))
    traced = Workload.trace(network, example, loss=loss)
    # The trace counts the tokens, which an embedding saves; a picture it saves is a copy of 16 bits.
    given = 0 if example.is_floating_point() else example.nbytes
    assert traced.counts_half
    assert traced.kept_bytes("autocast") - given == pytest.approx(many - few, rel=0.03)


def test_normalisations_and_the_loss_stay_wide_and_products_copy() -> None:
    table = Workload.trace(perceptron, torch.empty(1, 64), loss="cross_entropy")
    assert [layer(table, name).activation_bytes_half for name in ("0", "1", "3", "5")] == [
        2 * 64,
        4 * 96 + 2 * 4,  # its input at fp32, which is a copy, and two statistics
        2 * 96,
        2 * 96,
    ]
    assert layer(table, "loss").activation_bytes_half == layer(table, "loss").activation_bytes == 4 * 10 + 8


def test_operations_have_the_type_of_their_list() -> None:
    with torch.device("meta"), autocast():
        x = torch.empty(4, 4)
        y = x @ x
        assert y.dtype == (x.to(torch.float64).float() @ x).dtype == torch.einsum("ij,kj->ik", x, x).dtype == torch.bfloat16
        assert y.softmax(-1).dtype == y.exp().dtype == y.sum().dtype == (y + x).dtype == torch.float32
        assert y.relu().dtype == y.softmax(-1, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert torch.addcmul(x, y, y).dtype == torch.float32 and torch.addcmul(y, y, y).dtype == torch.bfloat16
        assert (x.double() @ x.double()).dtype == torch.float64
        assert (torch.ones(2, 2, device="cpu") @ torch.ones(2, 2, device="cpu")).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32 and x.exp().dtype == torch.float32


def test_each_operation_stands_in_one_list_and_torch_has_it() -> None:
    names = [*NARROW, *WIDE, *WIDEST]
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(torch.ops.aten, name)] == []


class Doubles(nn.Module):
    """Refuses 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(self.mix(x).unflatten(-1, (2, 2)))


def test_a_network_that_does_not_run_under_autocast_is_taken_as_half() -> None:
    table = Workload.trace(Doubles, torch.empty(1, 4))
    assert not table.counts_half and table.kept_bytes("autocast") == table.activation_bytes / 2
