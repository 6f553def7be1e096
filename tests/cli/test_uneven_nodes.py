"""Nodes that hold different numbers of devices, at the command line: predicted, or refused with a next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main

PREDICT = "predict resnet-50 --device T4 --network 50Gb/s --global-batch 240 --json --devices-per-node"


def run(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    code = main(command.split())
    out, err = capsys.readouterr()
    return code, out, err


def test_they_are_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"{PREDICT} 2+4")
    assert code == 0 and json.loads(out)["cluster"]["devices_per_node"] == "2+4"
    even = [json.loads(run(capsys, f"{PREDICT} {sizes}")[1])["step_time_s"] for sizes in ("3+3", "3 --nodes 2")]
    assert even[0] == even[1]


@pytest.mark.parametrize("verb", ["predict", "explain", "whatif --change global-batch=480"])
def test_a_title_names_each_node(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, f"{verb} resnet-50 --device T4 --network 50Gb/s --global-batch 240 --devices-per-node 1+3")[1]
    assert out.startswith("resnet-50 on 1+3 T4, batch 240")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{PREDICT} 2+4 --nodes 3", "leave --nodes out"),
        (f"{PREDICT} 2+x", "write 8, or 1+7"),
        (f"{PREDICT} 2+4 --exchange hierarchical --compression int8", "nodes of equally many devices"),
        ("predict resnet-50 --device p5.48xlarge --devices-per-node 1+7", "leave the number out, or name the device: H100 SXM"),
        ("plan resnet-50 --device p5.48xlarge --devices-per-node 1+7 --max-nodes 2", "leave the number out"),
        ("plan resnet-50 --device T4 --devices-per-node 2+4 --max-nodes 2 --network 50Gb/s", "ask predict and whatif"),
        ("whatif resnet-50 --device T4 --devices-per-node 2+4 --network 50Gb/s --global-batch 240 --change nodes+1", "2+4"),
        (f"{PREDICT} 2 --nodes 4 --oversubscription 2", "give leaf_nodes"),
        (f"{PREDICT} 2 --nodes 4 --leaf-nodes 2", "without oversubscription, which change nothing; give oversubscription too"),
        (f"{PREDICT} 2 --nodes 4 --leaf-nodes 4 --oversubscription 2:1", "all 4 nodes lie below one of them; give fewer nodes"),
        (f"{PREDICT} 2 --nodes 4 --leaf-nodes 2 --oversubscription 2:0", "write 2:1, or 2"),
        (f"{PREDICT} 2 --nodes 4 --leaf-nodes 3 --oversubscription 2", "no whole leaf switches of 3"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    code, out, err = run(capsys, command)
    assert code == 2 and message in err and len(err.splitlines()) == 1 and not out


def test_a_change_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    of = "whatif resnet-50 --device T4 --devices-per-node 3 --nodes 2 --network 50Gb/s --global-batch 240 --json"
    code, out, _ = run(capsys, f"{of} --change devices-per-node=2+4")
    assert code == 0 and len(json.loads(out)["changes"]) == 1


def test_records_of_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("workload,device,devices_per_node,network,global_batch,step_s\nresnet-50,T4,2+4,50Gb/s,240,0.6\n")
    code, out, _ = run(capsys, f"{PREDICT} 2+4 --records {table}")
    assert code == 0 and json.loads(out)["step_time_s"] == pytest.approx(0.6, rel=0.05)


def test_all_to_all_of_a_blocking_network_waits_longer(capsys: pytest.CaptureFixture[str]) -> None:
    of = f"{PREDICT} 2 --nodes 4 --exchange sharded --compression int8"
    plain, blocked = (
        json.loads(run(capsys, f"{of} {leaf}")[1])["step_time_s"] for leaf in ("", "--leaf-nodes 2 --oversubscription 16")
    )
    assert blocked > plain
