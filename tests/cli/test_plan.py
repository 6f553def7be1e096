"""``paceline plan``: the best strategy for a target, and what is not known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import answer, run
from paceline.cli.commands import plan as cli_plan
from paceline.planning.search.choice import Plan
from planning_commands import PLAN, SMALL


def same_plan(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """One search for a test that shows its answer in several ways."""
    answers: list[tuple[tuple[Any, ...], Plan]] = []

    def once(workload: Any, *question: Any, **more: Any) -> Plan:
        if not answers:
            answers.append((question, plan(workload, *question, **more)))
        assert answers[0][0] == question
        return answers[0][1]

    return once


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"{PLAN} --goal cheapest --price 2 --why-not compression=terngrad")
    best = data["best"]
    assert best["time_low_s"] <= best["time_s"] <= best["time_high_s"] and best["usd"] > 0
    assert data["considered"] > 50 and data["assumptions"] and data["front"] and data["why_not"]
    assert sum(x["count"] for x in data["excluded"]) > 0 and all(x["reason"] for x in data["excluded"])
    short = run(capsys, f"{PLAN} --goal cheapest --price 2")[1]
    assert "\n3. " in short and "\n4. " not in short and "5 more strategies" in " ".join(short.split())
    assert "It rests on" not in short and "best of each number of devices" in short
    text = run(capsys, f"{PLAN} --goal cheapest --price 2 --why")[1]
    assert "\n8. " in text and "Left out:" in text
    assert max(map(len, text.splitlines())) <= 80 and "given by the user" in text and "ompression" in text


def test_without_a_batch_it_answers_and_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    small = f"{SMALL} --sharding ddp --compression dense"
    known = answer(capsys, f"plan resnet-50 {small}")
    assert "MLPerf" in known["work"] and "neither a batch nor samples" in known["work"] and not known["notice"]
    same = answer(capsys, f"plan resnet-50 {small} --target mlperf")
    assert same["best"] == known["best"]
    speed = answer(capsys, f"plan resnet-50 {small} --samples 1e6")
    assert "not counted; the target mlperf counts it" in speed["notice"]
    text = " ".join(run(capsys, f"plan vgg-16 {small} --why")[1].split())
    assert text.startswith("vgg-16, 1,000,000 samples; goal fastest ")
    assert text.index("The batch is chosen by speed alone") < text.index("Ranking, of")
    assert text.count("unknown for vgg-16 and not counted; a target RUNS.csv counts it") == 1
    assert text.count("chosen by speed alone: the samples that a larger batch needs are not counted") == 1  # at the top


def test_an_instance_is_rented_whole(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "plan resnet-50 --device g5.48xlarge --max-nodes 2 --samples 1.2M --sharding ddp --compression dense")
    assert "1,200,000 samples" in data["work"]
    assert {row["cluster"]["devices_per_node"] for row in (data["best"], *data["ranking"])} == {8}


DIVIDED = "plan gpt2-xl --device A100 --devices-per-node 8 --max-nodes 1 --global-batch 64 --precision bf16 --sharding zero1"


@pytest.mark.long
def test_named_sizes_are_searched_and_emitted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = answer(capsys, f"{DIVIDED} --pipeline 4 --virtual-stages 1 --virtual-stages 2 --grad-accum 8")
    best = data["best"]["strategy"]
    assert best["pipeline"] == 4 and best["grad_accum_steps"] == 8 and best["virtual_stages"] in (1, 2)
    assert "layouts that divide the network" in data["layouts"]
    code, out, _ = run(capsys, f"{DIVIDED} --pipeline 4 --emit megatron")
    assert code == 0 and "--pipeline-model-parallel-size 4\n" in out and out.startswith("# Written by paceline")
    place = tmp_path / "options.json"
    plain = DIVIDED.replace("zero1", "zero3")
    code, out, _ = run(capsys, f"{plain} --emit deepspeed --out {place}")
    assert code == 0 and f"wrote {place}" in out.splitlines() and json.loads(place.read_text())["train_batch_size"] == 64
    both = answer(capsys, f"{plain} --emit deepspeed")
    started = "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config FILE"
    options = both["options"]
    assert (options["target"], options["text"], options["launch"]) == ("deepspeed", place.read_text(), started)
    assert "learning rate" in options["left"] and options["left"] in " ".join(out.split())
    script = tmp_path / "run.sh"
    code, out, _ = run(capsys, f"{plain} --emit torchrun {script}")
    assert code == 0 and out.endswith(f"Run: bash {script}\n") and "fully_shard(model" in script.read_text()


def test_what_emitted_options_leave_to_the_user_is_said_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    question, place = f"{PLAN} --max-nodes 1 --compression dense --emit", tmp_path / "options.json"
    code, out, err = run(capsys, f"{question} deepspeed")
    assert code == 0 and json.loads(out)["train_batch_size"] == 512
    assert err.startswith('The learning rate is "auto" in the file') and err.endswith(".\n") and err.count("\n") == 1
    code, written, nothing = run(capsys, f"{question} deepspeed {place}")
    assert code == 0 and place.read_text() == out and err.strip() in " ".join(written.split()) and not nothing
    code, out, err = run(capsys, f"{question} torchrun")
    assert code == 0 and "torchrun" in out and not err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--pipeline 4 --emit deepspeed", "deepspeed has no option for a pipeline of 4"),
        ("--out here", "--out without --emit"),
        ("--emit deepspeed --out /no/such/place", "cannot write /no/such/place"),
        ("--emit jax", "unknown target 'jax'"),
        ("--emit deepspeed a b", "--emit deepspeed is given 2 places: a, b"),
        ("--emit deepspeed a --out b", "--emit deepspeed is given 2 places: a, b"),
        ("--tensor 0", "in tensors"),
    ],
)
def test_options_that_cannot_be_emitted_are_one_line(capsys: pytest.CaptureFixture[str], more: str, said: str) -> None:
    code, out, err = run(capsys, f"{DIVIDED.replace('zero1', 'zero3')} {more}")
    assert code == 2 and not out and said in err and "Traceback" not in err


@pytest.mark.parametrize("more", ["--exchange switch", "--exchange ring --exchange switch"])
def test_sums_in_a_switch_that_is_not_there_name_the_option(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"plan alexnet --cluster '4x1 A100' --network 10Gb/s --global-batch 256 {more}")
    assert (code, out) == (2, "") and "--aggregation SwitchML, ATP or 'Paceline switch'" in " ".join(err.split())


@pytest.mark.long
@pytest.mark.everyday("bert-large --cluster '4x8 T4, 25Gb/s' --samples 1M")
@pytest.mark.parametrize(
    "question",
    [
        "resnet-50 --cluster '8x8 A100, 100Gb/s'",
        pytest.param("resnet-50 --cluster '64x8 A100, 100Gb/s' --epochs 2", marks=pytest.mark.full),
        "bert-large --cluster '4x8 T4, 25Gb/s' --samples 1M",
    ],
)
def test_an_answer_fits_a_screen_of_45_lines(
    question: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_plan, "plan", same_plan(cli_plan.plan))
    data, text = answer(capsys, f"plan {question}"), run(capsys, f"plan {question}")[1]
    assert len(text.splitlines()) <= 45
    rows = [line.split()[0] for line in text[text.index("\ndevices") :].split("\n\n")[0].splitlines()[2:]]
    cheapest = min(data["by_devices"], key=lambda choice: choice["usd"])
    for choice in (data["best"], cheapest, data["by_devices"][0], data["by_devices"][-1]):
        assert f"{choice['strategy']['world_size']:,}" in rows
    every = run(capsys, f"plan {question} --why")[1]
    assert all(f"\n{choice['strategy']['world_size']:,} " in every for choice in data["by_devices"])


@pytest.mark.long
def test_the_table_of_sizes_has_those_of_the_ranking_and_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_plan, "plan", same_plan(cli_plan.plan))
    question = "plan gpt2-xl --device B200 --devices-per-node 8 --max-nodes 16 --network 400Gb/s"
    data = answer(capsys, question)
    text = run(capsys, question)[1]
    clusters = [choice["cluster"] for choice in data["by_devices"]]
    every = {cluster["devices_per_node"] * cluster["num_nodes"] for cluster in clusters}
    shown = [int(n) for n in re.findall(r"^(\d+) +[\d,]+ +\d", text, re.MULTILINE)]
    ranked = [int(a) * int(b) for a, b in re.findall(r"^\d\. .* (\d+) x (\d+) B200", text, re.MULTILINE)]
    assert len(ranked) == 3 and set(ranked) <= set(shown)
    assert f"The best of {len(shown)} of {len(clusters)} numbers of devices" in text
    assert set(shown) <= every


def test_a_plan_speaks_of_its_strategy_and_its_batch_as_ask_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "plan resnet-50 --cluster '2 A100' --sharding distributed_optimizer --target mlperf --global-batch 3264 --why"
    text = " ".join(run(capsys, asked)[1].split())
    assert "run it as DDP with a sharded optimizer (Megatron-Core's distributed_optimizer), " in text
    assert "batch 3,264; a small batch needs 6% fewer samples. Beyond the critical batch of 47,390" in text
