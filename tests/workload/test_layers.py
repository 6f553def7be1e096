"""A layer table as data: no negative work, rows there and back, gradients in their order."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline.models import REGISTRY
from paceline.workload import Workload
from paceline.workload.layers import Coverage, Layer, LayerTable, Operation, Parameter


@each_row("name", REGISTRY)
def test_quantities_are_not_negative(name: str) -> None:
    for layer in Workload.named(name).layers:
        assert layer.activation_bytes >= 0
        for operation in layer.operations:
            numbers = [v for v in (getattr(operation, f) for f in type(operation).__slots__) if not isinstance(v, str)]
            assert min(numbers) >= 0 and operation.calls > 0, layer


WHOLE = st.integers(0, 10**9).map(float)
OPERATIONS = st.builds(
    Operation,
    kind=st.sampled_from(("matmul", "conv", "attention", "memory")),
    backward=st.booleans(),
    calls=st.integers(1, 99),
    flops=WHOLE | st.floats(0, 1e15),
    bytes=WHOLE,
    fixed_bytes=WHOLE,
    m=WHOLE,
    n=WHOLE | st.just(13.5),
    k=WHOLE,
    batch=WHOLE,
    grows=st.sampled_from(("m", "k", "batch", "")),
    window=st.integers(1, 49),
)


@given(OPERATIONS)
def test_an_operation_is_its_row(operation: Operation) -> None:
    row = json.loads(json.dumps(operation.to_row()))
    again = Operation.from_row(row)
    assert again == operation and [type(v) for v in asdict(again).values()] == [type(v) for v in asdict(operation).values()]


def test_a_row_ends_before_the_defaults() -> None:
    assert Operation(kind="memory", backward=False, calls=2).to_row() == ["memory", 0, 2]
    assert Operation(kind="memory", backward=True, calls=1, bytes=8.0).to_row() == ["memory", 1, 1, 0, 8]


@given(st.lists(OPERATIONS, max_size=6), st.permutations(range(5)))
def test_a_table_is_its_json_and_adds_up(operations: list[Operation], ready: list[int]) -> None:
    layers = tuple(Layer(name=f"l{i}", kind="Linear", operations=tuple(operations[i:]), activation_bytes=i) for i in range(2))
    table = LayerTable(
        name="made up",
        layers=layers,
        parameters=tuple(Parameter(name=f"p{i}", shape=(i, 2), layer=0, ready=place) for i, place in enumerate(ready)),
        input_bytes=4.0,
        sample="vector",
        source="made up",
        coverage=Coverage(ops=4, known=3, unknown={"aten.fft": 1}),
    )
    assert LayerTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    assert [p.ready for p in table.ready_order] == list(range(5)) and table.num_parameters == 2 * sum(range(5))
    both = sum(layer.flops_forward + layer.flops_backward for layer in layers)
    assert table.flops_per_sample == both == pytest.approx(sum(o.flops for layer in layers for o in layer.operations))
    assert table.attends == any(o.kind == "attention" for o in operations) and table.activation_bytes == 1
    assert table.coverage.share == 0.75 and "\n" not in repr(table)


def test_a_trace_of_nothing_is_covered() -> None:
    assert Coverage(ops=0, known=0).share == 1.0
    assert Parameter(name="scalar", shape=(), layer=0, ready=0).size == 1


def test_a_file_holds_the_table(tmp_path: Path) -> None:
    table = Workload.named("lenet5")
    table.save(tmp_path / "lenet5.json")
    assert Workload.load(tmp_path / "lenet5.json") == table


def test_what_layers_keep_at_16_bits_is_written_and_old_tables_are_taken_as_half() -> None:
    layers = (
        Layer(name="a", kind="LayerNorm", operations=(), activation_bytes=8.0, activation_bytes_half=8.0),
        Layer(name="b", kind="Linear", operations=(), activation_bytes=0.0, activation_bytes_half=4.0),
        Layer(name="c", kind="Linear", operations=(), activation_bytes=6.0),
    )
    table = LayerTable(
        name="t", layers=layers, parameters=(), input_bytes=1.0, sample="", source="", coverage=Coverage(ops=0, known=0)
    )
    rows = table.to_json()["layers"]
    assert rows == [["a", "LayerNorm", [8.0, 8.0]], ["b", "Linear", [0.0, 4.0]], ["c", "Linear", 6.0]]
    assert LayerTable.from_json(table.to_json()).layers == layers and not table.counts_half
    assert [table.kept_bytes(numbers) for numbers in ("fp32", "autocast", "narrow")] == [14.0, 15.0, 7.0]
    assert layers[0].divided((), 2).activation_bytes_half == 4.0 and layers[2].divided((), 2).activation_bytes_half is None


def test_a_loop_repeats_every_product_of_its_layer() -> None:
    def layer(kind: str, *calls: int) -> Layer:
        products = (Operation(kind="matmul", backward=False, calls=n, m=1.0, n=1.0, k=1.0, batch=1.0) for n in calls)
        own = (*products, Operation(kind="memory", backward=False, calls=50))
        return Layer(name="x", kind=kind, operations=own, activation_bytes=0.0)

    assert layer("LSTMCell", 20, 20).turns == 20
    assert layer("Attention", 2, 1).turns == 1  # two products of one shape are no loop
    assert layer("Sum").turns == 1
    assert layer("LSTM", 20).turns == 1  # one call of a library
