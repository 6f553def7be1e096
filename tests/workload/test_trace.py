"""What a trace sees: who did which work, in which order, and that it grows with the batch."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from paceline.models import build, model
from paceline.workload import Layer, Operation, Workload
from paceline.workload.fused import fused_kernels
from paceline.workload.operations import Shape
from paceline.workload.recorder import Recorder


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


def layer(table: Workload, name: str) -> Layer:
    return next(entry for entry in table.layers if entry.name == name)


def grown(operation: Operation, batch: int) -> Shape:
    """The product of one call for ``batch`` samples."""
    o = replace(operation, **{operation.grows: getattr(operation, operation.grows) * batch})
    return o.batch, o.m, o.n, o.k


def products(table: Workload, name: str) -> list[tuple[float, ...]]:
    """(batch, m, n, k) and the letter that grows, of every product of a layer."""
    return [(o.batch, o.m, o.n, o.k, o.grows) for o in layer(table, name).operations if o.kind != "memory"]


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


@pytest.mark.parametrize("name", ["cifar10-terngrad", "resnet-50", "bert-base"])
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
    assert linear.fixed_bytes_forward == 4 * (10 * 30 + 30)  # weight and bias, read once a step
    assert linear.bytes_forward == 4 * (10 + 30)
    # Both layers keep the same tensor, the rectifier's output: counted once, with the first to keep it.
    assert layer(table, "1").activation_bytes == 4 * 10 and linear.activation_bytes == 0
    assert table.input_bytes == 40 and table.sample == "tensor 10"


def test_embedding_reads_rows_not_the_table() -> None:
    table = Workload.trace(lambda: nn.Embedding(1000, 8), torch.zeros((1, 4), dtype=torch.int64))
    (work,) = (entry for entry in table.layers if entry.kind == "Embedding")
    assert work.flops_forward == work.flops_backward == 0
    assert work.bytes_forward == 4 * 8 + 2 * 4 * 8 * 4  # four int64 indices; rows read and written
    assert work.fixed_bytes_forward == 0 and work.fixed_bytes_backward == 1000 * 8 * 4  # a dense gradient
    assert table.input_bytes == 4 * 8


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), dilation=(1, 2)), (4, 11, 13)),
        (nn.Conv3d(2, 3, 3), (2, 5, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 5)),
        (nn.LSTM(4, 5, batch_first=True), (7, 4)),
        (nn.GRU(4, 5, 3, batch_first=True, bidirectional=True, dropout=0.2), (7, 4)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), (5, 8)),
    ],
)
def test_flops_are_those_that_torch_counts(module: nn.Module, shape: tuple[int, ...]) -> None:
    given = torch.empty(2, *shape)
    table = Workload.trace(module, given)
    # Torch counts a recurrent layer by its steps, not as the one kernel that a GPU has for it.
    kernels = nullcontext() if isinstance(module, nn.RNNBase) else fused_kernels()
    with torch.device("meta"), kernels, warnings.catch_warnings():
        module, counter = module.to("meta").train(), FlopCounterMode(display=False)
        with counter:
            output = module(given.to("meta"))
            (output[0] if isinstance(output, tuple) else output).mean().backward()
    assert 2 * table.flops_per_sample == counter.get_total_flops() > 0
    assert table.coverage.share == 1.0


def test_grouped_convolution_costs_a_group_each() -> None:
    table = Workload.trace(nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4)), torch.empty(1, 8, 6, 6))
    # The input needs no gradient here: the rectifier has no parameters.
    assert layer(table, "1").flops_forward == layer(table, "1").flops_backward == 2 * 16 * 8 * 2 * 9


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


def test_attention_is_traced_as_one_fused_kernel() -> None:
    heads, length, width = 2, 16, 8
    block = nn.MultiheadAttention(width, heads, batch_first=True)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            result: Tensor = self.block(x, x, x, attn_mask=mask, need_weights=False)[0]
            return result

    table = Workload.trace(Masked, torch.empty(1, length, width))
    products = 2 * length * length * width  # over all heads
    projections = 2 * length * width * 4 * width
    assert layer(table, "block").flops_forward == projections + 2 * products
    assert layer(table, "block").activation_bytes < 4 * heads * length * length + 4 * 8 * length * width
    assert table.coverage.share == 1.0


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
    assert layer(table, "(model)").ops_forward == 2  # the square and the sum are the model's own


def test_products_of_a_linear_layer() -> None:
    table = Workload.trace(lambda: nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 30)), torch.empty(1, 7, 10))
    forward, of_input, of_weight = (1, 7, 30, 20, "m"), (1, 7, 20, 30, "m"), (1, 30, 20, 7, "k")
    assert products(table, "1") == [forward, of_input, of_weight]
    assert products(table, "0") == [(1, 7, 20, 10, "m"), (1, 20, 10, 7, "k")]
    assert [o.kind for o in layer(table, "1").operations][-1] == "memory"  # the sum of the bias gradients


@pytest.mark.parametrize(
    ("module", "forward", "of_input", "of_weight"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (1, 64, 6, 36, "m"), (1, 64, 4, 54, "m"), (1, 6, 36, 64, "k")),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (1, 16, 6, 36, "m"), (1, 64, 4, 13.5, "m"), (1, 6, 36, 16, "k")),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 64, 1, 9, "m"), (4, 64, 1, 9, "m"), (4, 1, 9, 64, "k")),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 256, 6, 4, "m"), (1, 64, 4, 24, "m"), (1, 4, 24, 64, "k")),
    ],
)
def test_products_of_a_convolution(
    module: nn.Module, forward: tuple[object, ...], of_input: tuple[object, ...], of_weight: tuple[object, ...]
) -> None:
    """Worked out by hand for 8x8 images; a stride leaves the input's gradient a part of the window a position."""
    table = Workload.trace(nn.Sequential(nn.Conv2d(3, 4, 1), module), torch.empty(1, 3, 8, 8))
    assert products(table, "1") == [forward, of_input, of_weight]
    convolutions = [o for o in layer(table, "1").operations if o.kind == "conv"]
    assert {o.window for o in convolutions} == {9 if module.kernel_size == (3, 3) else 4}
    gradient = 4 * prod_of_output(module)
    assert convolutions[1].bytes == 4 * 4 * 64 + gradient / 2 and convolutions[2].bytes == convolutions[1].bytes


def prod_of_output(module: nn.Module) -> int:
    return int(module(torch.empty(1, 4, 8, 8)).numel())


def test_products_of_attention_and_of_steps_in_time() -> None:
    table = Workload.trace(nn.MultiheadAttention(8, 2, batch_first=True), (torch.empty(1, 16, 8),) * 3)
    assert (2, 16, 16, 4, "batch") in products(table, "(model)")
    steps = Workload.trace(nn.LSTM(4, 5, batch_first=True), torch.empty(1, 7, 4))
    (recurrent,) = (o for o in steps.layers[0].operations if o.k == 5 and not o.backward)
    assert (recurrent.calls, recurrent.m, recurrent.n, recurrent.grows) == (7, 1, 20, "m")


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
