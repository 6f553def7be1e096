"""The parts of a pipeline: every layer and parameter in one of them, blocks in equal numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import efficiency
from paceline.errors import UserError
from paceline.prediction.mesh.stage_sends import sends
from paceline.prediction.mesh.stages import boundary_bytes, stages
from paceline.prediction.passes.blocks import most_parts
from paceline.workload import TransformerShape


def gpt(layers: int, tied: bool = False) -> Workload:
    return Workload.from_shape(TransformerShape(layers=layers, hidden=64, heads=4, vocabulary=500, tied=tied), 32)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_every_layer_and_parameter_is_in_one_stage(layers: int, count: int, virtual: int) -> None:
    workload = gpt(layers)
    if most_parts(layers) < count * virtual:
        with pytest.raises(UserError, match=f"a pipeline of {count * virtual} parts: .* has {layers} blocks"):
            stages(workload, count, virtual)
        return
    own = stages(workload, count, virtual)
    assert len(own) == count and all(len(stage.parts) == virtual for stage in own)
    assert sum(len(stage.workload.layers) for stage in own) == len(workload.layers)
    assert sum(stage.workload.num_parameters for stage in own) == workload.num_parameters
    assert sum(stage.workload.flops_per_sample for stage in own) == pytest.approx(workload.flops_per_sample)
    blocks = [
        len({stage.workload.layers[i].name.split(".")[1] for i in part if "blocks." in stage.workload.layers[i].name})
        for stage in own
        for part in stage.parts
    ]
    assert max(blocks) - min(blocks) <= 1 and sum(blocks) == layers


def test_embedding_and_logits_may_be_parts_of_their_own() -> None:
    network = gpt(6)
    own = stages(network, 4, 2)
    parts = [[stage.workload.layers[i].name.split(".")[0] for i in stage.parts[turn]] for turn in range(2) for stage in own]
    assert "blocks" not in parts[0] + parts[-1] and all(set(part) == {"blocks"} for part in parts[1:-1])
    last_alone = stages(network, 7, 1)  # one part more than blocks: the loss counts, the embedding does not
    held = [{layer.name.split(".")[0] for layer in stage.workload.layers} for stage in last_alone]
    assert "blocks" in held[0] and "tokens" in held[0] and "blocks" not in held[-1]


def test_a_part_of_the_embedding_alone_sends_what_blocks_send() -> None:
    cluster = Cluster.named("8 A100")
    strategy = Strategy.of(world_size=8, global_batch_size=8, micro_batches=8, precision="bf16", pipeline=8)
    own = stages(gpt(6), 8, 1)
    seconds, _, _ = sends(own, cluster, strategy, efficiency("tuned"))
    assert seconds == pytest.approx([seconds[1]] * 7) and seconds[0] > 0


def test_parts_follow_each_other_from_stage_to_stage() -> None:
    workload = gpt(8)
    own = stages(workload, 2, 2)
    in_turn = [stage.workload.layers[i].name for turn in range(2) for stage in own for i in stage.parts[turn]]
    assert in_turn == [layer.name for layer in workload.layers]


def test_stages_of_equally_many_blocks_keep_their_parts() -> None:
    network = gpt(20)  # twelve parts: the middle eight have two blocks, so a stage has 1, 2, 2 or 2, 2, 1
    parts = [[len(part) for part in stage.parts] for stage in stages(network, 4, 3)]
    assert parts[1][0] < parts[1][1] == parts[1][2] and parts[2][0] == parts[2][1] > parts[2][2]


def test_parameters_are_those_of_the_stages_layers_in_their_order() -> None:
    for stage in stages(gpt(6), 3, 2):
        table = stage.workload
        assert sorted(p.ready for p in table.parameters) == list(range(len(table.parameters)))
        for p in table.parameters:
            assert p.name.startswith(table.layers[p.layer].name)


def test_a_tied_table_is_at_both_ends() -> None:
    tied, apart = stages(gpt(4, tied=True), 4, 1), stages(gpt(4), 4, 1)
    assert [stage.tied for stage in tied] == [500 * 64, 0, 0, 500 * 64]
    assert [stage.tied for stage in apart] == [0] * 4
    assert [s.workload.num_parameters for s in tied] == [s.workload.num_parameters for s in apart]


def test_equal_stages_are_one_object() -> None:
    own = stages(gpt(8), 4, 1)
    assert own[1] is own[2] and own[0] is not own[1] is not own[3]


def test_what_leaves_a_stage_is_the_activation_between_blocks() -> None:
    for stage in stages(gpt(4), 4, 1)[:-1]:
        assert boundary_bytes(stage.workload.layers) == 4 * 32 * 64


@pytest.mark.parametrize(
    ("count", "virtual", "ends", "sizes"),
    [
        (4, 1, (3, 3), [3, 9, 9, 3]),
        (4, 1, (3, 0), [3, 7, 7, 7]),
        (4, 1, (0, 5), [6, 7, 6, 5]),
        (2, 1, (10, 14), [10, 14]),
        (2, 2, (10, 0), [5, 7, 5, 7]),
    ],
)
def test_ends_may_have_other_numbers_of_blocks(count: int, virtual: int, ends: tuple[int, int], sizes: list[int]) -> None:
    net = Workload.from_shape(TransformerShape(layers=24, hidden=64, heads=2, vocabulary=64), 8)
    own = [
        len({layer.name.split(".")[1] for layer in part.workload.layers[r.start : r.stop] if "blocks." in layer.name})
        for turn in range(virtual)
        for part in stages(net, count, virtual, ends)
        for r in [part.parts[turn]]
    ]
    assert own == sizes


@pytest.mark.parametrize("name", ["tacotron2", "rnnt", "ssd-resnet50"])
def test_a_network_whose_work_lies_outside_its_blocks_has_none(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} has 0 blocks"):
        stages(Workload.named(name), 2, 1)
