"""What a trace sees: who did which work, in which order, and that it grows with the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.models import build, model
from paceline.workload import Operation, Workload
from paceline.workload.tracing.operations import Shape
from paceline.workload.tracing.recorder import Recorder
from traced_layers import layer, products, work


class Tiny(nn.Module):
    """A transformer of two layers over 16 words, output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(self.words(tokens)))
        return result


def grown(operation: Operation, batch: int) -> Shape:
    """The product of one call for ``batch`` samples."""
    o = replace(operation, **{operation.grows: getattr(operation, operation.grows) * batch})
    return o.batch, o.m, o.n, o.k


def observed_order(module: nn.Module, data: Tensor) -> list[str]:
    """The order in which a real backward pass completes gradients."""
    order: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    logits = module(data).flatten(0, -2)
    nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64)).backward()
    return order


@pytest.mark.parametrize("name", ["lenet5", "cifar10-terngrad", "hdc"])
def test_ready_order_of_named_networks_is_the_real_one(name: str) -> None:
    entry = model(name)
    table = Workload.trace(entry.function, entry.input.example(1), loss="cross_entropy")
    assert [p.name for p in table.ready_order] == observed_order(build(name), entry.input.example(2))


def test_ready_order_of_a_transformer_is_the_real_one() -> None:
    tokens = torch.zeros((3, 5), dtype=torch.int64)
    table = Workload.trace(Tiny, tokens, loss="cross_entropy")
    assert [p.name for p in table.ready_order] == observed_order(Tiny(), tokens)


@pytest.mark.everyday("resnet-18-cifar")
@pytest.mark.parametrize("name", ["cifar10-terngrad", "resnet-18-cifar", "bert-base"])
def test_work_grows_linearly_to_a_third_batch(name: str) -> None:
    entry, batch = model(name), 6
    table = Workload.trace(entry.function, entry.input.example(1, "meta"), loss="mean")
    with torch.device("meta"):
        module, data = build(name), entry.input.example(batch, "meta")
        recorder = Recorder(module)
        recorder.run(lambda: module(data), lambda output: output.mean())
    for entry_ in table.layers:
        work = recorder.work[entry_.name]
        for back, kernels in enumerate(work.kernels):
            done = [operation for operation in entry_.operations if operation.backward == back]
            assert sum(o.flops for o in done) * batch == sum(kernel.flops or 0.0 for kernel in kernels)
            assert sum(o.fixed_bytes + batch * o.bytes for o in done) == sum(kernel.bytes for kernel in kernels)
            shapes = Counter(kernel.shape for kernel in kernels if kernel.kind != "memory")
            expected: Counter[Shape] = Counter()
            for o in done:
                if o.kind != "memory":
                    expected[grown(o, batch)] += o.calls
            assert shapes == expected
            assert sum(o.calls for o in done) == len(kernels)


def test_first_convolution_has_no_input_gradient() -> None:
    table = Workload.trace(lambda: build("lenet5"), torch.empty(1, 1, 28, 28))
    first, second, dense = (layer(table, name) for name in ("conv1", "conv2", "fc1"))
    assert first.flops_backward == first.flops_forward == 2 * 24 * 24 * 20 * 25
    assert second.flops_backward == 2 * second.flops_forward
    assert dense.flops_backward == 2 * dense.flops_forward == 4 * 800 * 500


def test_bytes_and_activations_of_a_linear_layer() -> None:
    table = Workload.trace(lambda: nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 30)), torch.empty(1, 10))
    linear = layer(table, "2")
    assert work(linear, "fixed_bytes_forward") == 4 * (10 * 30 + 30)  # weight and bias, read once a step
    assert work(linear, "bytes_forward") == 4 * (10 + 30)
    # Both layers keep the same tensor, the rectifier's output: counted once, with the first to keep it.
    assert layer(table, "1").activation_bytes == 4 * 10 and linear.activation_bytes == 0
    assert table.input_bytes == 40 and table.sample == "tensor 10"


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.twice, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.twice(self.twice(self.frozen(x))))
        return result


def test_a_module_called_twice_is_one_layer_with_its_work_added() -> None:
    table = Workload.trace(Reused, torch.empty(1, 4))
    assert [entry.name for entry in table.layers] == ["frozen", "twice", "last", "never", "loss"]
    assert layer(table, "twice").flops_forward == 2 * layer(table, "last").flops_forward == 4 * 16
    # Frozen weights need no gradient, nor does what comes before: one product less in twice's first call.
    assert layer(table, "frozen").flops_backward == 0
    assert layer(table, "twice").flops_backward == 3 * 2 * 16
    assert [p.name for p in table.ready_order[-2:]] == ["never.weight", "never.bias"]
    assert not any(p.name.startswith("frozen") for p in table.parameters)
    assert table.frozen == 4 * 4 + 4 == Workload.from_json(table.to_json()).frozen
    assert [table.layers[p.layer].name for p in table.parameters] == ["last"] * 2 + ["twice"] * 2 + ["never"] * 2


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.body, self.first(x), use_reentrant=False)
        return result


def test_activation_checkpointing_moves_a_forward_into_the_backward_pass() -> None:
    table = Workload.trace(Checkpointed, torch.empty(1, 4))
    assert layer(table, "body.0").flops_backward == 3 * layer(table, "body.0").flops_forward == 3 * 2 * 64
    assert layer(table, "body.1").activation_bytes == 0


def test_the_users_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    before = module[0].weight.clone()
    Workload.trace(module, torch.empty(1, 4))
    assert torch.equal(module[0].weight, before) and not module.training and module[0].weight.grad is None


def test_ties_survive_when_a_function_builds_on_the_cpu() -> None:
    def built() -> nn.Module:
        module = Tiny()
        assert module.words.weight.device.type == "cpu", "not on this device"
        return module

    table = Workload.trace(built, torch.zeros((1, 5), dtype=torch.int64), loss="cross_entropy")
    assert table.num_parameters == Workload.trace(Tiny, torch.zeros((1, 5), dtype=torch.int64)).num_parameters
    assert table.parameters[0].name == "words.weight"
    assert not any(p.name == "head.weight" for p in table.parameters)


def test_inputs_may_be_several_or_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"sum": self.mix(left) + right, "left": left}

    pair = (torch.empty(1, 4), torch.empty(1, 4))
    by_name = Workload.trace(Two, {"left": pair[0], "right": pair[1]})
    assert by_name.layers == Workload.trace(Two, pair).layers and by_name.input_bytes == 32


def test_the_loss_attribute_is_the_loss() -> None:
    class Output:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Output:
            return Output(self.mix(x).square().sum())

    table = Workload.trace(Own, torch.empty(1, 4))
    assert work(layer(table, "(model)"), "calls_forward") == 2  # the square and the sum are the model's own


def test_columns_that_grow_are_the_same_product_the_other_way_round() -> None:
    class Left(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight @ x.T

    assert products(Workload.trace(Left, torch.empty(1, 3)), "(model)") == [(1, 1, 5, 3, "m"), (1, 5, 3, 1, "k")]


def test_kernels_launched_sample_by_sample_are_added_up() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.mix(row) for row in x])

    table = Workload.trace(Loop, torch.empty(1, 4, 4))
    assert layer(table, "mix").flops_forward == 2 * 4 * 4 * 6
