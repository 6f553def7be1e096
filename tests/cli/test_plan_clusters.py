"""The largest cluster of a plan, as ``predict`` takes it or by its parts."""

from __future__ import annotations

import pytest

from command import answer, run

FEW = "--samples 1M --global-batch 512 --precision bf16 --compression dense --sharding ddp --exchange allreduce"


def sizes(capsys: pytest.CaptureFixture[str], command: str) -> list[tuple[int, int]]:
    rows = answer(capsys, f"plan resnet-50 {command} {FEW}")["by_devices"]
    return [(row["cluster"]["devices_per_node"], row["cluster"]["num_nodes"]) for row in rows]


def test_a_cluster_by_its_name_is_that_by_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    whole = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]
    for command in (
        "--device A100 --devices-per-node 8 --max-nodes 2",
        "--device A100 --devices-per-node 8 --nodes 2",
        "--device A100 --devices-per-node 8 --devices 16",
        "--cluster '2x8 A100'",
    ):
        assert sizes(capsys, f"{command} --network 100Gb/s") == whole, command
    assert sizes(capsys, "--device A100 --devices 4") == sizes(capsys, "--cluster '4 A100'") == whole[:3]
    assert sizes(capsys, "--device A100 --devices-per-node 8 --devices 2") == whole[:2]
    assert sizes(capsys, "--device A100 --devices 16 --network 100Gb/s") == whole


def test_an_instance_is_let_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("--cluster '2x p5.48xlarge'", "--device p5.48xlarge --devices 16", "--device p5.48xlarge --nodes 2"):
        assert sizes(capsys, command) == [(8, 1), (8, 2)]
    assert sizes(capsys, "--cluster p5.4xlarge") == [(1, 1)]


def test_several_clusters_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, f"plan resnet-50 --cluster '2 A100' --cluster '2 H100' {FEW}")["by_devices"]
    assert [row["cluster"]["device"] for row in rows] == ["A100 SXM 80GB"] * 2 + ["H100 SXM"] * 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "no device is named"),
        ("--device A100", "nothing says how many devices"),
        ("--device A100 --devices 8 --max-nodes 1", "--max-nodes and --devices both say how many"),
        ("--device A100 --devices 64", "64 A100 are 8 nodes of 8, which have no network; add one: '8x8 A100, 100Gb/s'"),
        ("--device A100 --devices 12 --network 100Gb/s", "12 A100 are no whole nodes: a node has 8"),
        ("--device A100 --devices-per-node 8 --devices 12 --network 100Gb/s", "--devices 12 are no whole nodes of 8"),
        ("--device A100 --devices 0", "--devices"),
        ("--device A100 --max-nodes 0", "--max-nodes 0"),
        ("--cluster '8 A100' --device A100", "--cluster says what --device says"),
        ("--cluster '1+7 A100' --network 100Gb/s", "ask predict and whatif"),
        ("--device A100 --device H100 --network a --network b --network c --max-nodes 2", "is given 3 times for 2 devices"),
    ],
)
def test_what_is_no_cluster_is_one_line(capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    code, out, err = run(capsys, f"plan resnet-50 {command} {FEW}")
    assert code == 2 and not out and message in err and err.count("\n") == 1
