"""The options that every prediction takes: the optimizer, the software level, the bucket."""

from __future__ import annotations

import pytest

from command import answer, run
from planning_commands import JOB, PLAN, SMALL


def test_the_optimizer_is_the_usual_one_unless_named(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--device A100 --global-batch 4 --precision fp32"
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
            assert any(a.startswith("Framework: tuned") for a in tuned["assumptions"])
        times = [one.get("time_s", one.get("step_time_s")) for one in (ordinary, tuned)]
        assert times[1] < times[0], command


def test_a_plans_bucket_can_be_asked_of_predict(capsys: pytest.CaptureFixture[str]) -> None:
    where, way = "--device A100 --devices-per-node 4 --network 100Gb/s", "--precision fp16 --sharding zero3 --global-batch 512"
    only = "--compression dense --exchange allreduce --samples 1e6 --tensor 1"
    best = answer(capsys, f"plan gpt2 {where} --max-nodes 8 {way} {only}")["best"]
    s = best["strategy"]
    assert s["bucket_bytes"] == 100 << 20 and s["world_size"] == 32
    job = f"gpt2 {where} --nodes 8 {way} --grad-accum {s['grad_accum_steps']} {'--recompute' * (s['recompute'] == 'full')}"
    assert answer(capsys, f"predict {job}")["step_time_s"] > 1.01 * best["step_time_s"]
    for asked in (f"predict {job} --bucket 100MiB", f"explain {job} --bucket {s['bucket_bytes']}B"):
        same = answer(capsys, asked)
        assert same["strategy"] == s and same["step_time_s"] == pytest.approx(best["step_time_s"])
    changed = answer(capsys, f"whatif {job} --bucket 100MiB --change bucket=25MiB --change bucket=100MiB")
    assert changed["base"]["strategy"] == s
    smaller, same = (one["speedup"] for one in changed["changes"])
    assert smaller < 0.99 and same == pytest.approx(1)


def test_what_lora_trains_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    job = "llama-3-8b --seq-len 4k --cluster '8 A100' --precision bf16 --sharding fsdp --global-batch 16"
    out = " ".join(run(capsys, f"predict {job} --lora r=16")[1].split())
    assert "LoRA r=16,targets=attention: 13.6 M numbers are trained, 8.03 G are frozen." in out
    out = " ".join(run(capsys, f"predict {job} --lora qlora")[1].split())
    assert "QLoRA r=16,targets=all-linear,bits=4,double=yes: 41.9 M numbers are trained, 8.03 G are frozen." in out
    assert "held in 4 bits, embeddings, output layer and norms in 16: 5.68 bits a frozen weight" in out
    assert "Blocks are recomputed (as PEFT prepares" in out and "recompute full" in out
    out = " ".join(run(capsys, f"predict {job} --lora qlora --recompute none")[1].split())
    assert "Blocks are recomputed" not in out and "recompute full" not in out
    code, _, err = run(capsys, f"predict {job} --lora bits=4")
    assert code == 2 and "has no rank" in err
