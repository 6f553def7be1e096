"""``plan``, ``whatif`` and ``explain`` on the command line: one object, a range, the assumptions; a mistake is one line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from command import answer, run
from paceline.hardware import cluster

SMALL = "--device A100 --devices-per-node 4 --network 10Gb/s --max-nodes 2"
PLAN = f"plan resnet-50 {SMALL} --global-batch 512 --sharding ddp"
JOB = "resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 10Gb/s --global-batch 1024"


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"{PLAN} --goal cheapest --price 2 --why-not compression=terngrad")
    best = data["best"]
    assert best["time_low_s"] <= best["time_s"] <= best["time_high_s"] and best["usd"] > 0
    assert data["considered"] > 50 and data["assumptions"] and data["front"] and data["why_not"]
    assert sum(x["count"] for x in data["excluded"]) > 0 and all(x["reason"] for x in data["excluded"])
    text = run(capsys, f"{PLAN} --goal cheapest --price 2")[1]
    assert max(map(len, text.splitlines())) <= 80 and "given by the user" in text and "ompression" in text


def test_a_target_of_ones_own_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("global_batch,samples_to_target\n256,1000000\n512,1100000\n1024,1300000\n")
    data = answer(capsys, f"plan resnet-50 {SMALL} --target {runs} --sharding ddp --compression dense --penalty terngrad=1.1")
    assert 256 <= data["best"]["strategy"]["global_batch_size"] <= 1024
    assert any("from 3 points" in a for a in data["assumptions"])


def test_without_a_batch_it_answers_and_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    small = f"{SMALL} --sharding ddp --compression dense"
    known = answer(capsys, f"plan resnet-50 {small}")
    assert "MLPerf" in known["work"] and "neither a batch nor samples" in known["work"] and not known["notice"]
    same = answer(capsys, f"plan resnet-50 {small} --target mlperf")
    assert same["best"] == known["best"]
    speed = answer(capsys, f"plan resnet-50 {small} --samples 1e6")
    assert "not counted; the target mlperf counts it" in speed["notice"]
    text = " ".join(run(capsys, f"plan vgg-16 {small}")[1].split())
    assert text.startswith("vgg-16, 1,000,000 samples; goal fastest The batch is chosen by speed alone")
    assert text.count("unknown for vgg-16 and not counted; a target RUNS.csv counts it") == 2  # at the top, and below


def test_epochs_and_samples_are_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    epochs, samples = (answer(capsys, f"{PLAN} {work}") for work in ("--epochs 2", f"--samples {2 * 1281167}"))
    assert epochs["best"]["time_s"] == pytest.approx(samples["best"]["time_s"])


def test_whatif(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, f"whatif {JOB} --change nodes+1 --change network=100Gb/s --change device=H100-SXM")[1].split())
    assert text.count("global batch 1032 instead of 1024") >= 4  # in two rows and in what it rests on
    data = answer(capsys, f"whatif {JOB} --change network=100Gb/s --change nodes+2")
    assert [one["title"] for one in data["changes"]] == ["network=100Gb/s", "nodes+2"]
    for one in (*data["changes"], data["together"]):
        assert one["speedup_low"] <= one["speedup"] <= one["speedup_high"]
        assert one["low_s"] <= one["step_time_s"] <= one["high_s"] and one["assumptions"]
        assert 0 < one["usd_low"] < one["usd"] < one["usd_high"]
    assert data["changes"][1]["scaling"] == "strong" and data["unit"] == "epoch"
    assert "strong scaling" in " ".join(run(capsys, f"whatif {JOB} --change nodes+2")[1].split())
    assert "weak scaling" in " ".join(run(capsys, f"whatif {JOB} --change nodes+2 --scaling weak")[1].split())


def test_explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = answer(capsys, f"explain {JOB} --trace {tmp_path / 'step.json'}")
    assert sum(data["exposed"].values()) == pytest.approx(data["step_time_s"])
    assert data["critical_path"] and data["if_gone"][0]["resource"] == data["bottleneck"]
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    text = run(capsys, f"explain {JOB}")[1]
    assert data["bottleneck"] in text and "Critical path" in text


@pytest.mark.parametrize(
    "command", [f"predict {JOB}", f"{PLAN} --goal cheapest", f"whatif {JOB} --change nodes=4", f"explain {JOB}"]
)
def test_report(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, f"{command} --report {tmp_path}")
    assert (code, err) == (0, "") and out.splitlines()[-1] == f"report: {tmp_path}/report.html"
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{PLAN} --goal soonest", "legal: fastest, cheapest, deadline=6h, budget=500"),
        (f"{PLAN} --goal deadline=2h", "goal deadline=2 h 00 min needs an amount of training"),
        (f"{PLAN} --goal deadline=1s --samples 1e9", "the nearest takes"),
        (f"{PLAN} --goal budget=1 --samples 1e9", "the nearest takes $"),
        (f"plan vgg-16 {SMALL} --goal budget=5", "goal budget=$5.00 needs an amount of training"),
        (f"plan lenet5 {SMALL} --target mlperf", "unknown MLPerf convergence curve 'lenet5'"),
        (f"{PLAN} --target soon", "give mlperf, a CSV file of global_batch"),
        (f"{PLAN} --target none.csv", "cannot read none.csv"),
        (f"plan lenet5 {SMALL} --global-batch 64 --epochs 3", "give --samples instead"),
        (f"{PLAN} --epochs 3 --samples 5", "give one of them"),
        (f"{PLAN} --samples -5", "give a positive number"),
        (f"{PLAN} --compression terngrat", "did you mean terngrad"),
        (f"{PLAN} --why-not colour=red", "unknown choice 'colour'"),
        (f"{PLAN} --price cheap", "is not a price"),
        (f"{PLAN} --penalty terngrad=none", "is not a factor"),
        (f"{PLAN} --max-loss -1", "give points of accuracy from 0 up"),
        (f"{PLAN} --global-batch 0", "whole number"),
        ("plan resnet-50 --device A100 --max-nodes 2 --global-batch 64", "2 nodes have no network"),
        ("plan resnet-50 --device A100 --max-nodes 0 --global-batch 64", "--max-nodes 0"),
        (
            "plan resnet-50 --device A100 --devices-per-node 8 --devices-per-node 4 --max-nodes 1 --global-batch 64",
            "once for each",
        ),
        ("plan resnet-50 --device A100 --max-nodes 1 --global-batch 7 --devices-per-node 0", "devices_per_node is 0"),
        ("plan gpt2 --device T4 --max-nodes 1 --global-batch 4096 --sharding ddp --precision fp32", "GiB are missing"),
        (f"whatif {JOB} --change notes+1", "nearest: nodes"),
        (f"whatif {JOB} --change network=0Gb/s", "positive bandwidth"),
        (f"whatif {JOB} --global-batch 1020 --change nodes+1", "does not divide among 16 workers"),
        (f"whatif {JOB} --change nodes+2 --scaling linear", "unknown scaling 'linear'"),
        (
            "predict resnet-50 --device T4 --devices-per-node 3 --nodes 1000000000 --network 1Gb/s --global-batch 3000000000",
            "at most 1,048,576",
        ),
        ("predict resnet-50 --device T4 --devices-per-node 17 --global-batch 17", "PCIe 3.0 x16 joins at most 16"),
        (
            "predict resnet-50 --device T4 --nodes 5000 --network 1Gb/s --global-batch 5000 --exchange ring",
            "give at most 4,096 workers",
        ),
        ("predict resnet-50 --device T4 --devices-per-node 4 --global-batch 8 --exchange hierarchical", "needs several nodes"),
        ("plan resnet-50 --device T4 --network 1Gb/s --max-nodes 1000000000", "at most 1,048,576"),
        (f"{PLAN} --optimizer adan", "did you mean adam"),
        (f"predict {JOB} --optimizer adan", "did you mean adam"),
        (f"{PLAN} --software best", "unknown software level 'best'"),
        (f"explain {JOB} --software best", "unknown software level 'best'"),
        (f"whatif {JOB} --change nodes=1000000000", "at most 1,048,576"),
        (f"explain {JOB} --run nowhere", "no run directory"),
        (f"explain {JOB} --trace /proc/no/trace.json", "cannot write"),
    ],
)
def test_a_mistake_is_one_line(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command)
    assert code == 2 and out == "" and err.count("\n") == 1 and err.startswith("paceline: "), err
    assert said in err


def test_what_does_not_fit_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("predict", "explain"):
        code, out, _ = run(capsys, f"{command} mpt-70b --device T4 --global-batch 1")
        assert code == 0 and out.startswith("DOES NOT FIT: 1,03") and out.splitlines()[0].endswith("on each device.")
        data = answer(capsys, f"{command} mpt-70b --device T4 --global-batch 1")
        assert not data["fits"] and data["missing_bytes"] > 2**39 and data["memory"]["reserve"] == 1.5 * 2**30


def test_a_network_that_nothing_uses_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "predict lenet5 --device V100 --network 10Gb/s --global-batch 8")
    assert any(a.endswith("is not used: there is one node.") for a in data["assumptions"])


def test_the_optimizer_is_the_usual_one_unless_named(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--device A100 --global-batch 4"
    bert, resnet, sgd = (
        answer(capsys, f"predict {name} {small}") for name in ("bert-large", "resnet-50", "resnet-50 --optimizer sgd")
    )
    assert [one["strategy"]["optimizer"] for one in (bert, resnet, sgd)] == ["adam", "momentum", "sgd"]
    assert bert["memory"]["optimizer state"] == 2 * bert["memory"]["weights"] and not sgd["memory"]["optimizer state"]
    assert sgd["step_time_s"] < resnet["step_time_s"]
    assert any(a.startswith("Optimizer: adam, 2 fp32 values") for a in bert["assumptions"])
    best = answer(capsys, f"plan bert-large {SMALL} --global-batch 64 --sharding ddp --compression dense --samples 1e6")["best"]
    assert best["strategy"]["optimizer"] == "adam"


def test_tuned_software_is_faster_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    commands = (f"predict {JOB}", f"explain {JOB}", f"whatif {JOB} --change nodes+1", f"{PLAN} --compression dense")
    for command in commands:
        ordinary, tuned = (answer(capsys, f"{command} --software {level}") for level in ("ordinary", "tuned"))
        if command.startswith("whatif"):
            ordinary, tuned = ordinary["base"], tuned["base"]
        elif command.startswith("plan"):
            ordinary, tuned = ordinary["best"], tuned["best"]
        else:
            assert (ordinary["software"], tuned["software"]) == ("ordinary", "tuned")
            assert any(a.startswith("Software: tuned") for a in tuned["assumptions"])
        times = [one.get("time_s", one.get("step_time_s")) for one in (ordinary, tuned)]
        assert times[1] < times[0], command


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


def test_records_say_first_what_corrected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("workload,device,global_batch,step_s\nresnet-50,V100,64,0.2\n")
    data = answer(capsys, f"predict resnet-50 --device V100 --global-batch 64 --records {table}")
    assert data["assumptions"][0] == "Corrected by 1 observed step on up to 1 device."
    assert not any("Not calibrated" in a for a in data["assumptions"])


def test_the_error_on_held_out_runs_stands_beside_each_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (f"predict {JOB}", f"explain {JOB}", f"whatif {JOB} --change nodes+1", f"{PLAN} --compression dense"):
        data = answer(capsys, command)
        said = data["assumptions"] if "assumptions" in data else data["base"]["assumptions"]
        assert any(a.startswith("On held-out published runs of this kind (ordinary") for a in said), command
    nodes = answer(capsys, f"predict {JOB}")["held_out_error"]
    alone = answer(capsys, "predict resnet-50 --device V100 --global-batch 64 --software tuned")["held_out_error"]
    assert 0 < nodes < 1 and 0 < alone < 1 and nodes != alone


def test_a_plans_bucket_can_be_asked_of_predict(capsys: pytest.CaptureFixture[str]) -> None:
    where, way = "--device A100 --devices-per-node 4 --network 100Gb/s", "--precision fp16 --sharding zero3 --global-batch 512"
    only = "--compression dense --exchange allreduce --samples 1e6"
    best = answer(capsys, f"plan gpt2 {where} --max-nodes 8 {way} {only}")["best"]
    s = best["strategy"]
    assert s["bucket_bytes"] == 100 << 20 and s["world_size"] == 32
    job = f"gpt2 {where} --nodes 8 {way} --grad-accum {s['grad_accum_steps']} {'--recompute' * s['recompute']}"
    assert answer(capsys, f"predict {job}")["step_time_s"] > 1.01 * best["step_time_s"]
    for asked in (f"predict {job} --bucket 100MiB", f"explain {job} --bucket {s['bucket_bytes']}B"):
        same = answer(capsys, asked)
        assert same["strategy"] == s and same["step_time_s"] == pytest.approx(best["step_time_s"])
    changed = answer(capsys, f"whatif {job} --bucket 100MiB --change bucket=25MiB --change bucket=100MiB")
    assert changed["base"]["strategy"] == s
    smaller, same = (one["speedup"] for one in changed["changes"])
    assert smaller < 0.99 and same == pytest.approx(1)


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
        assert not any("its speed is not known" in a for a in data["assumptions"])
        plenty = answer(capsys, f"predict {JOB} {records} --loader 1e9")
        assert plenty["step_time_s"] == pytest.approx(free["step_time_s"]) and plenty["bottleneck"] == free["bottleneck"]
    gone = answer(capsys, f"explain {JOB} --loader {rate / 10}")["if_gone"]
    assert gone[0]["resource"] == "input pipeline" and gone[0]["speedup"] > 2
    upgrade = answer(capsys, f"whatif {JOB} --loader {rate / 10} --change network=100Gb/s")["changes"][0]
    assert upgrade["speedup"] == pytest.approx(1)
