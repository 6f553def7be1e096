"""What an FSDP2 model's exchange owes, in a checkpoint: bit for bit on the same ranks, its sum on any."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import sharded_states
from distributed import launch
from paceline.errors import UserError
from paceline.training.attach.shards.sharded_state import Holding, saved_sizes
from paceline.training.attach.shards.unit_exchange import ShardedTensor, sharded
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec

DDP = "a hook of DistributedDataParallel"
MOMENTUM = {"density": 0.05, "momentum": 0.5}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
@pytest.mark.everyday("full-3-topk-options0")
@pytest.mark.parametrize(
    ("kind", "workers", "compression", "options"),
    [
        ("full", 3, "topk", MOMENTUM),
        ("full", 3, "topk", {**MOMENTUM, "residual_bits": 16}),
        ("nodes", 4, "sign", {}),
        ("hsdp", 4, "topk", MOMENTUM),
        ("hsdp", 4, "sign", {"residual_bits": 16}),
    ],
)
def test_bit_for_bit_on_the_same_ranks(tmp_path: Path, kind: str, workers: int, compression: str, options: Any) -> None:
    given = {"kind": kind, "path": str(tmp_path / "saved"), "compression": compression, "options": options}
    before = launch(sharded_states.save, workers, **given)
    assert any(float(v.abs().max()) > 0 for v in before[0]["owed"].values())
    for by_dcp in (True, False):
        for one, other in zip(before, launch(sharded_states.load, workers, by_dcp=by_dcp, **given), strict=True):
            assert other["at"] == (4, 0)
            assert same(one["owed"], other["owed"])
            assert all(same(a, b) for a, b in zip(one["next"], other["next"], strict=True))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A checkpoint of three ranks, and what they owe together."""
    path = tmp_path_factory.mktemp("states") / "saved"
    given = {"path": str(path), "compression": "topk", "options": MOMENTUM}
    return given, launch(sharded_states.save, 3, kind="full", **given)[0]["owed"]


@pytest.mark.long
@pytest.mark.everyday("to0")
@pytest.mark.parametrize("to", [("full", 2), ("full", 4), ("nodes", 2), ("nodes", 4), ("hsdp", 4)])
def test_what_the_model_is_owed_stays_on_other_ranks_and_meshes(saved: Any, to: tuple[str, int]) -> None:
    """The sum over the ranks, divided by their number."""
    given, before = saved
    for result in launch(sharded_states.load, to[1], kind=to[0], by_dcp=False, **given):
        assert result["owed"].keys() == before.keys()
        for name, owed in before.items():
            torch.testing.assert_close(result["owed"][name] / to[1], owed / 3, rtol=1e-6, atol=1e-9)


@pytest.mark.long
@pytest.mark.everyday("32")
@pytest.mark.parametrize("bits", [32, 16])
def test_where_nothing_is_encoded_the_next_gradient_takes_what_is_owed(saved: Any, tmp_path: Path, bits: int) -> None:
    """One node: once, in the first step that counts. Saved before, it goes on to more ranks."""
    given, before = saved
    narrow = {**given, "options": {**MOMENTUM, "residual_bits": bits}, "again": str(tmp_path / "again")}
    close = {"rtol": 2**-8, "atol": 2**-8 * max(float(v.abs().max()) for v in before.values())}
    for result in launch(sharded_states.alone, 2, kind="nodes", **narrow):
        for name, wanted in before.items():
            torch.testing.assert_close(
                result["loaded"][name] * 3 / 2, wanted, **(close if bits == 16 else {"rtol": 1e-6, "atol": 1e-9})
            )
        assert same(result["loaded"], result["of own states"]) and same(result["loaded"], result["bad step"])
        assert not any(values.any() for values in result["left"].values())
        first, second = ({n: s[n] - w[n] for n in w} for s, w in zip(result["seen"], result["wanted"], strict=True))
        for name, more in first.items():
            owed = result["loaded"].get(f"residual {name}", torch.zeros(()))
            torch.testing.assert_close(more, (owed / 2).float().expand_as(more), rtol=1e-4, atol=1e-6)
        assert max(float(more.abs().max()) for more in second.values()) < 1e-6
    for result in launch(sharded_states.load, 3, kind="full", by_dcp=False, **{**given, "path": narrow["again"]}):
        for name, wanted in before.items():
            torch.testing.assert_close(result["owed"][name], wanted, **(close if bits == 16 else {"rtol": 1e-6, "atol": 1e-9}))


def test_on_one_rank_what_is_owed_waits_and_its_size_is_said(saved: Any, tmp_path: Path) -> None:
    """FSDP2 calls no exchange there."""
    given, before = saved
    again = str(tmp_path / "again")
    (result,) = launch(sharded_states.alone, 1, kind="full", again=again, **given)
    norm = sum(float(values.square().sum()) for name, values in before.items() if name.startswith("residual")) ** 0.5 / 3
    assert len(result["said"]) == 1 and f"residuals of norm {norm:.3g} " in result["said"][0]
    for owed in (result["loaded"], result["left"]):
        for name, wanted in before.items():
            torch.testing.assert_close(owed[name], wanted / 3, rtol=1e-6, atol=1e-9)


@pytest.mark.everyday("2-False")
@pytest.mark.parametrize(("workers", "by_dcp"), [(3, True), (3, False), (2, False)])
def test_residuals_of_another_width_are_taken_over(saved: Any, workers: int, by_dcp: bool) -> None:
    """Of fp32 into bfloat16: each rank's share is rounded to nearest, by half a unit of the last of its eight places."""
    given, before = saved
    narrow = {**given, "options": {**MOMENTUM, "residual_bits": 16}}
    for result in launch(sharded_states.load, workers, kind="full", by_dcp=by_dcp, **narrow):
        for name, owed in ((name, values * workers / 3) for name, values in before.items()):
            torch.testing.assert_close(result["owed"][name], owed, rtol=2**-8, atol=2**-8 * float(owed.abs().max()))
            assert not torch.equal(result["owed"][name], owed) or not owed.any()


@pytest.mark.long
def test_residuals_between_nodes_or_replicas_are_a_share_of_those_over_all_ranks(tmp_path: Path) -> None:
    """Half on nodes of two: what a rank sends between nodes is the part of its own place."""
    found = {}
    for kind in ("full", "nodes", "hsdp"):
        given = {"kind": kind, "path": str(tmp_path / kind), "compression": "sign", "options": {}}
        found[kind] = launch(sharded_states.save, 4, **given)[0]["elements"]
    assert found["nodes"] == found["full"] / 2 and found["hsdp"] < found["full"] * 0.52


@pytest.mark.long
def test_refused(tmp_path: Path) -> None:
    where = {"path": str(tmp_path / "saved")}
    launch(sharded_states.save, 2, kind="full", compression="topk", options={}, **where)
    for said in launch(sharded_states.refused, 2, other=str(tmp_path), **where):
        assert "the state is of topk, the model sends sign" in said["compression"]
        assert "holds no checkpoint" in said["nothing"]
        for name, given in (("name", "optimizer"), ("part", "exchange.residual")):
            assert f"holds no '{given}' of a sharded model's exchange that can be read: Missing key" in said[name]
            assert "Traceback" not in said[name]
        assert "the state has 0.weight in 2 shards of 961 elements, the model's have 1023" in said["width"]
    for said in launch(sharded_states.refused, 3, other=str(tmp_path), **where):
        assert "the state has 0.weight in 2 shards of 961 elements, the model's have 1023" in said["width"]


def test_a_checkpoint_without_its_data_is_refused(tmp_path: Path) -> None:
    for said in launch(sharded_states.cut_short, 2, path=str(tmp_path / "saved")):
        assert "holds no 'exchange' of a sharded model's exchange that can be read" in said and "Traceback" not in said


def test_foreign_and_damaged_states_are_refused() -> None:
    """With a line that says what is wrong, and before anything is taken from them."""
    for said in launch(sharded_states.foreign, 2):
        for how in ("saved", "own"):
            assert "no state of a hook: {}" in said[f"empty, {how}"] and "no state of a hook: None" in said[f"nothing, {how}"]
            for what, of in (("ddp", DDP), ("ddp, of 0.1.0", DDP), ("powersgd", DDP), ("local", "local steps")):
                assert f"the state is of {of}, this model is sharded by fully_shard; give" in said[f"{what}, {how}"]
            assert "damaged: step missing or wrong" in said[f"step, {how}"]
            assert "damaged: gradient_exchange missing or wrong" in said[f"not json, {how}"]
            assert "damaged: gradient_exchange missing or wrong" in said[f"no object, {how}"]
            assert "no residual of 4.weight" in said[f"bare, {how}"]
        assert "no residual of 4.weight for this mesh; " in said["own, saved"] and "load_own_states" in said["own, saved"]
        assert "no residual of 4.weight; give what own_state() returned" in said["saved, own"]
        assert "an empty list was given" in said["no states"] and "no residual of 4.weight" in said["flat"]
        assert "0.weight in 2 shards of 961 elements, the model's have 1023" in said["width"]
        for what in ("ddp", "powersgd", "local"):
            for how in ("saved", "own", "all"):
                assert "the state is of a sharded model's hook, this model is whole on each rank" in said[f"{how}, into {what}"]
        assert said["step"] == "1"


@pytest.mark.long
def test_with_tensor_parallelism_each_rank_takes_its_own_parts_of_the_states_of_all() -> None:
    """Those of other parts of the tensors alone do not serve."""
    for rank, result in enumerate(launch(sharded_states.tensor_parallel, 4)):
        assert result["at"] == (1, 0) and same(result["before"], result["after"])
        assert ("residual", f"2.0.weight@{rank % 2}") in result["after"] and ("velocity", "0.weight") in result["after"]
        assert any(float(values.abs().max()) > 0 for values in result["after"].values())
        assert f"the states have no residual of 2.0.weight@{rank % 2}; give what own_state()" in result["said"]


def test_parts_of_several_runs_are_refused() -> None:
    (two,) = sharded([TensorSpec("t", (7, 5), 0)], [0], 2)
    (three,) = sharded([TensorSpec("t", (7, 5), 0)], [0], 3)
    parts = [holding(0, 3).part(torch.zeros(3, three.shard)), holding(1, 2).part(torch.zeros(2, two.shard))]
    with pytest.raises(UserError, match="the states of t are of several runs"):
        holding(0, 4).from_parts(parts, *sharded([TensorSpec("t", (7, 5), 0)], [0], 4))


def holding(source: int, sources: int, place: int = 0, places: int = 1, rows: int = 0) -> Holding:
    """That of one rank, without the others."""
    mesh = create_autospec(DeviceMesh, instance=True)
    mesh.get_coordinate.return_value = [source, place]
    return Holding(mesh, sources, places, place, rows or sources, reading=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sources", "places"), [(3, 1), (2, 2)])
def test_of_the_parts_of_all_ranks_each_takes_its_own(sources: int, places: int) -> None:
    """On the same mesh; in any order, beside those of others or alone."""
    (tensor,) = sharded([TensorSpec("t", (7, 5), 0)], [0], sources * places)
    ranks = [holding(source, sources, place, places) for source in range(sources) for place in range(places)]
    owed = [torch.randn(sources, tensor.shard) for _ in ranks]
    parts = [rank.part(values) for rank, values in zip(ranks, owed, strict=True)]
    for number, (rank, values) in enumerate(zip(ranks, owed, strict=True)):
        for given in (parts, parts[::-1], [parts[number]]):
            assert torch.equal(rank.from_parts(given, tensor), values)


@pytest.mark.parametrize(("at", "to"), [((3, 1), (2, 1)), ((3, 1), (5, 1)), ((3, 1), (2, 2)), ((2, 2), (3, 1))])
def test_of_the_parts_of_another_mesh_each_takes_an_equal_share(at: tuple[int, int], to: tuple[int, int]) -> None:
    """From (sources, places) to others: what the model is owed stays what it was; without the parts of all it is refused."""

    def mesh(sources: int, places: int) -> tuple[ShardedTensor, list[Holding]]:
        (tensor,) = sharded([TensorSpec("t", (7, 5), 0)], [0], sources * places)
        return tensor, [holding(source, sources, place, places) for source in range(sources) for place in range(places)]

    def whole(tensor: ShardedTensor, ranks: list[Holding], owed: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(ranks[0].owners, tensor.shard)
        for rank, values in zip(ranks, owed, strict=True):
            total[rank.place :: rank.places] += values
        return tensor.whole_of(total)

    (old, before), (new, after) = mesh(*at), mesh(*to)
    owed = [rank.own_rows(old.rows_of(torch.randn(7, 5), rank.owners)) for rank in before]
    parts = [rank.part(values) for rank, values in zip(before, owed, strict=True)]
    shares = [rank.from_parts(parts, new) for rank in after]
    torch.testing.assert_close(whole(new, after, shares) / len(after), whole(old, before, owed) / len(before))
    with pytest.raises(UserError, match=f"the state of t is of {len(parts)} ranks, and {len(parts) - 1} are here"):
        after[0].from_parts(parts[1:], new)


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"\x80\x04\x95garbage", b"cno_such_module\nname\n."])
def test_a_damaged_list_of_a_checkpoints_tensors_is_a_users_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(UserError, match=r"holds no checkpoint of torch.distributed.checkpoint: \w"):
        saved_sizes(tmp_path, "hook")
