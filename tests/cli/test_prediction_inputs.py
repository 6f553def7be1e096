"""Workload, cluster, strategy and predictor from the options: a probe, a loader, records."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import paceline
from command import answer, run
from paceline.cli.arguments.training_arguments import add_training_arguments, training_run
from paceline.hardware import cluster
from planning_commands import JOB


@pytest.mark.long
def test_a_probed_machine_needs_no_catalogue(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    probed = cluster("T4", 2, 1)
    link = replace(probed.intra_link, name="measured link", kind="loopback")
    here = probed.changed(device=replace(probed.device, name="mine"), intra_link=link, network=link)
    file = tmp_path / "here.json"
    file.write_text(json.dumps(asdict(here)))
    job = f"predict resnet-50 --records {file} --devices-per-node 2 --global-batch 64"
    mine, known = answer(capsys, job), answer(capsys, "predict resnet-50 --device T4 --global-batch 32")
    assert mine["cluster"]["device"] == "mine" and mine["compute_s"] == pytest.approx(known["compute_s"], rel=0.1)
    assert not any("observed" in a for a in mine["assumptions"])
    code, _, err = run(capsys, f"{job} --nodes 2")
    assert code == 2 and "2 nodes have no network" in err
    code, _, err = run(capsys, f"{job} --device T4")
    assert code == 2 and "here.json, a probe, both name the device" in err
    code, _, err = run(capsys, f"{job} --records {file}")
    assert code == 2 and "are probes of a machine each" in err
    table = tmp_path / "jobs.csv"
    table.write_text("workload,device,global_batch,step_s\nresnet-50,V100,64,0.2\n")
    assert answer(capsys, f"{job} --records {table}")["cluster"]["device"] == "mine"
    for text in ("[1]", "{}", '{"best": {"strategy": {}}}', "no JSON"):
        file.write_text(text)
        for given in ("", "--device T4"):
            code, _, err = run(capsys, f"{job} {given}")
            assert code == 2 and "is not what a probe writes" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "asked", ["--cluster '2x p5.48xlarge'", "--device p5.48xlarge --nodes 2", "--device p5.48xlarge --nodes 2 --network efa"]
)
def test_an_instance_is_a_node_with_its_network(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"predict resnet-50 {asked} --global-batch 512")
    own = answer(capsys, "predict resnet-50 --cluster '2x8 H100' --network 'EFA 3200Gb/s' --global-batch 512")
    assert data["cluster"]["device"] == "H100 SXM"
    assert data["step_time_s"] == own["step_time_s"]


def test_records_say_first_what_corrected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("workload,device,global_batch,step_s\nresnet-50,V100,64,0.2\n")
    data = answer(capsys, f"predict resnet-50 --device V100 --global-batch 64 --records {table}")
    assert data["assumptions"][0] == "Corrected by 1 observed step on up to 1 device."
    assert not any("Not calibrated" in a for a in data["assumptions"])


def test_a_slow_loader_is_the_bottleneck(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("workload,device,devices_per_node,nodes,network,global_batch,step_s\nresnet-50,V100,8,2,10Gb/s,1024,0.1\n")
    for records in ("", f"--records {table}"):
        free = answer(capsys, f"predict {JOB} {records}")
        rate = free["samples_per_s"] / 2
        data = answer(capsys, f"predict {JOB} {records} --loader {rate}")
        assert data["bottleneck"] == "input pipeline" and data["samples_per_s"] == pytest.approx(rate)
        assert data["step_time_s"] == pytest.approx(2 * free["step_time_s"]) == pytest.approx(sum(data["exposed"].values()))
        assert data["low_s"] == pytest.approx(data["step_time_s"]) and data["high_s"] >= data["step_time_s"]
        trace = tmp_path / "step.json"
        explained = answer(capsys, f"explain {JOB} {records} --loader {rate} --trace {trace}")
        assert explained["step_time_s"] == data["step_time_s"] and '"input"' in trace.read_text()
        assert any("input pipeline delivers" in a for a in data["assumptions"])
        assert not any("its speed is unknown" in a for a in data["assumptions"])
        plenty = answer(capsys, f"predict {JOB} {records} --loader 1e9")
        assert plenty["step_time_s"] == pytest.approx(free["step_time_s"]) and plenty["bottleneck"] == free["bottleneck"]
    gone = answer(capsys, f"explain {JOB} --loader {rate / 10}")["if_gone"]
    assert gone[0]["resource"] == "input pipeline" and gone[0]["speedup"] > 2
    upgrade = answer(capsys, f"whatif {JOB} --loader {rate / 10} --change network=100Gb/s")["changes"][0]
    assert upgrade["speedup"] == pytest.approx(1)


def test_a_device_without_fp32_takes_what_it_has_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    job = "predict resnet-50 --device 'TPU v5p' --global-batch 64"
    code, out, _ = run(capsys, job)
    assert code == 0 and "Precision: bf16 (what networks are trained in on TPU v5p; --precision)." in " ".join(out.split())
    assert answer(capsys, job)["strategy"]["precision"] == "bf16"
    assert run(capsys, f"{job} --precision fp32")[0] == 2
    assert answer(capsys, f"{job} --precision amp")["strategy"]["precision"] == "bf16"
    assert paceline.predict("resnet-50", "TPU v5p", global_batch_size=64).strategy["precision"] == "bf16"


def test_a_compression_takes_an_exchange_that_the_sharding_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Predicted, changed and trained alike, where nobody names one."""
    job = "predict resnet-50 --cluster '8 A100' --global-batch 64 --compression topk"
    found = answer(capsys, f"{job} --sharding zero2")["strategy"]
    assert (found["exchange"], answer(capsys, job)["strategy"]["exchange"]) == ("sharded", "allgather")
    changed = answer(capsys, f"{job.replace('predict', 'whatif')} --change sharding=zero2")["changes"][0]
    assert changed["strategy"]["exchange"] == "sharded"
    parser = argparse.ArgumentParser()
    add_training_arguments(parser)
    given = ["--model=lenet5", "--data=digits", "--global-batch=64", "--compression=topk", "--sharding=zero2"]
    options = parser.parse_args(given, argparse.Namespace(parser=parser))
    assert training_run(options, workers=8).strategy.gradient_exchange.exchange.name == "sharded"


def test_bits_on_the_wire_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    job = "predict gpt2 --cluster '8 A100' --global-batch 32 --precision bf16 --sharding zero1"
    wide, narrow = answer(capsys, job), answer(capsys, f"{job} --gather-bits 16 --gradient-bits 16")
    assert narrow["wire_bytes_per_device"] < 0.7 * wide["wire_bytes_per_device"]
    code, _, err = run(capsys, f"{job} --gather-bits 7")
    assert code == 2 and "gather_bits=7" in err
    assert run(capsys, f"{job.replace('predict', 'whatif')} --change gather-bits=16")[0] == 0
