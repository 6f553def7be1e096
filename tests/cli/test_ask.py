"""``paceline ask``: options to one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, hidden), torch.nn.Linear(hidden, 2))
        self.example_input = torch.zeros(2, 3, 4, 4)
    def forward(self, x):
        return self.body(x)
"""
CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
"max_position_embeddings": 512, "tie_word_embeddings": false}"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_epochs_of_ones_own_data_within_a_date_and_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "ask resnet-50 --on '8 A100' --data 1.2M --epochs 90 --by 2d --budget '$500'")
    assert data["choice"]["samples"] == 90 * 1.2e6
    assert (data["by_s"], data["budget_usd"]) == (2 * 86400, 500.0)
    assert 0 <= data["in_time"] <= 1 and 0 <= data["in_budget"] <= 1
    assert data["amount"].startswith("90 epochs of 1,200,000 samples")


@pytest.mark.long
def test_a_saved_cluster_brings_its_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cluster add lab '2x8 A100, 100Gb/s RoCE' --price 1")[0] == 0
    data = answer(capsys, "ask bert-large --on lab --samples 1M")
    choice = data["choice"]
    assert choice["usd"] == pytest.approx(16 * choice["time_s"] / 3600)
    other = answer(capsys, "ask bert-large --on lab --samples 1M --price 2")
    assert other["choice"]["usd"] == pytest.approx(2 * choice["usd"])


QUESTIONS = (
    "resnet50 --on '2x8 A100, 100Gb/s' --data 1.2M --epochs 2 --by 2d",
    "gpt2 --on 'RTX 3060' --lora r=16 --samples 50k --seq-len 512 --price 0.5 --budget $50",
    "{file}:Net --data 1.2M --epochs 1 --args hidden=8 --software tuned",
    "{folder}/config.json --on 'NVIDIA T4' --tokens 1M --by 1s",
)


@pytest.mark.long
@pytest.mark.everyday("gpt2 --on 'RTX 3060' --lora r=16 --samples 50k --seq-len 512 --price 0.5 --budget $50")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_command_that_goes_deeper_runs(question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It weighs the same training on the same cluster, and finds nothing slower."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "config.json").write_text(CONFIG)
    asked = answer(capsys, f"ask {question.format(file=tmp_path / 'net.py', folder=tmp_path)}")
    assert asked["deeper"].startswith("paceline plan ")
    plan = answer(capsys, asked["deeper"].removeprefix("paceline "))
    best, chosen = plan["ranking"][0], asked["choice"]
    assert best["samples"] == chosen["samples"] and best["cluster"]["device"] == chosen["cluster"]["device"]
    assert best["time_s"] <= chosen["time_s"] * 1.06 or best["usd"] <= chosen["usd"]


def test_a_million_samples_are_taken_and_said_where_nothing_says_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    note = "Nothing says how much is trained: a million samples are taken"
    assert note in run(capsys, "ask resnet-18 --on T4")[1]
    assert note not in run(capsys, "ask resnet-18 --on T4 --samples 1M")[1]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--on '2x8 A100'", "network"),
        ("--on '8 A100' --by yesterday", "write it as 3d"),
        ("--on '8 A100' --budget much", "not an amount of dollars"),
        ("--on '8 A100' --data 1.2M", "no epochs are given"),
        ("--on '8 A100' --epochs 3 --samples 5", "both say how much"),
        ("--on '8 B100x'", "unknown device"),
        ("--on 'RTX 4070 laptop'", "slower than the board of its name"),
    ],
)
def test_mistakes_are_one_line(options: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"ask resnet-50 {options}")
    assert (code, out) == (2, "") and what in err and err.count("\n") == 1


@pytest.mark.long
def test_records_correct_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = " iteration {n} | elapsed time per iteration (ms): 900 | global batch size: 2048 |\n"
    (tmp_path / "train.log").write_text("".join(line.format(n=n) for n in range(9)))
    job, table = "--workload resnet-50 --precision bf16 --cluster '8 A100'", tmp_path / "jobs.csv"
    assert run(capsys, f"records import {tmp_path / 'train.log'} {job} --out {table}")[0] == 0
    plain, measured = (
        answer(capsys, f"ask resnet-50 --on '8 A100' --samples 1M{more}") for more in ("", f" --records {table}")
    )
    assert measured["choice"]["step_time_s"] != plain["choice"]["step_time_s"]


@pytest.mark.parametrize(
    ("on", "provider", "each"),
    [("Azure ND H100 v5", "Azure ND96isr_H100_v5", 12.29), ("2x a3-highgpu-8g", "GCP a3-highgpu-8g", 11.06125)],
)
def test_a_named_instance_has_its_providers_price(
    on: str, provider: str, each: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data = answer(capsys, f"ask bert-large --on '{on}' --samples 1M")
    devices = 8 * (2 if on.startswith("2x") else 1)
    assert data["provider"] == provider
    assert data["choice"]["usd"] == pytest.approx(devices * each * data["choice"]["time_s"] / 3600)
    own = answer(capsys, f"ask bert-large --on '{on}' --samples 1M --price 1")
    assert own["choice"]["usd"] == pytest.approx(devices * own["choice"]["time_s"] / 3600)


@pytest.mark.long
@pytest.mark.everyday("bert-large --on 'Azure ND H100 v5' --samples 1M")
@pytest.mark.parametrize("question", ["resnet-50", "bert-large --on 'Azure ND H100 v5' --samples 1M"])
def test_what_goes_deeper_has_the_price_of_the_answer(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = answer(capsys, f"ask {question}")
    plan = answer(capsys, asked["deeper"].removeprefix("paceline "))
    choice = asked["choice"]
    (same,) = [x for x in plan["by_devices"] if x["strategy"]["world_size"] == choice["strategy"]["world_size"]]
    assert same["usd"] / same["time_s"] == pytest.approx(choice["usd"] / choice["time_s"], rel=1e-4)
    assert asked["provider"] in run(capsys, f"ask {question}")[1]


def test_the_date_goes_deeper_as_it_was_written_and_the_budget_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = run(capsys, "ask bert-large --on '8 H100' --samples 1M --by 2099-12-01 --budget 50")[1]
    flat = " ".join(asked.split())
    assert "--goal deadline=2099-12-01" in flat and "--goal budget=50 instead weighs the budget" in flat


@pytest.mark.long
def test_a_missed_date_names_what_can_be_rented_and_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "ask llama-3-8b --on '8 H100' --tokens 1B --by 20min")
    keeping = data["keeping"]
    assert keeping["choice"]["time_s"] <= 1200 and keeping["title"] in data["advice"] and keeping["seller"] in data["advice"]


@pytest.mark.long
def test_a_longer_sequence_than_fits_is_answered_with_lighter_jobs_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "ask llama-3-8b --on 'RTX 4090' --lora r=16 --tokens 10M")
    assert not data["fits"] and data["lighter"]
    for lighter in data["lighter"]:
        lora, tokens = lighter.get("lora", "r=16"), lighter.get("seq_len", 8192)
        again = answer(capsys, f"ask llama-3-8b --on 'RTX 4090' --lora {lora} --tokens 10M --seq-len {tokens}")
        assert again["fits"] and (f"--lora {lora}" in data["advice"] or f"--seq-len {tokens}" in data["advice"])
    assert data["advice"].index("--seq-len") < data["advice"].index("else take")


def test_in_brief_what_does_not_fit_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = run(capsys, "ask llama-3-8b --on 'RTX 4090 D' --lora r=16 --tokens 10M --by 1h --budget 50 --brief")[1]
    assert line.casefold().count("not fit") == 1 and "within 60 min: " in line and "within $50.00: unknown" in line
