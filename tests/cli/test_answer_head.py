"""The head of an answer: what was taken, what would fit, and commands that do what they say."""

from __future__ import annotations

import html
import json
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command import answer, run
from paceline.cli import main
from paceline.cli.answer_head import SHOWN
from paceline.exit_codes import ExitCode


def test_the_first_lines_say_which_precision_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("predict", "explain", "whatif --change nodes=1", "predict --asynchronous"):
        job = "bert-large --device A100 --nodes 2 --network 10Gb/s --global-batch 8"
        out = run(capsys, f"{verb} {job}")[1]
        head = " ".join(out.split("\n\n")[0].split())
        assert "Precision: bf16 (what transformers are trained in on A100 SXM 80GB; --precision)." in head
        assert "--precision" not in run(capsys, f"{verb} {job} --precision bf16")[1]


def test_what_would_fit_is_the_answer_and_the_rest_is_behind_why(capsys: pytest.CaptureFixture[str]) -> None:
    job = "predict llama-3-8b --seq-len 6k --device A100 --devices-per-node 8"
    out = run(capsys, job)[1]
    assert [line.split("  ")[0] for line in out.splitlines()[8:15]] == [
        "As asked, a device needs 213 GiB and has 80.0 GiB. What would fit, the nearest",
        "first:",
        "",
        "--global-batch 8 --sharding zero3",
        "--global-batch 8 --tensor 4 --sequence",
        "--device MI325X --global-batch 8",
        "paceline predict llama-3-8b --seq-len 6144 --device A100 --devices-per-node 8 \\",
    ]
    assert len(out.splitlines()) <= 24 and "As if it fitted: " in out and "step time" not in out
    why = run(capsys, f"{job} --why")[1]
    assert all(text in why for text in ("step time", "throughput", "It rests on:", "As if it fitted: "))
    brief = run(capsys, f"{job} --brief")[1]
    assert brief.startswith("DOES NOT FIT: ") and brief.endswith("; what would fit: --global-batch 8 --sharding zero3\n")
    assert answer(capsys, "predict lenet5 --device A100 --global-batch 8")["would_fit"] == []


def test_three_offers_are_shown_and_the_others_are_behind_why(capsys: pytest.CaptureFixture[str]) -> None:
    job = "predict bert-large --cluster '4 V100' --global-batch 512"
    offers = [x["options"] for x in answer(capsys, job)["would_fit"]]
    assert len(offers) > SHOWN
    short, whole = (" ".join(run(capsys, f"{job}{why}")[1].split()) for why in ("", " --why"))
    assert all(offer in short for offer in offers[:SHOWN]) and not any(offer in short for offer in offers[SHOWN:])
    assert "What would fit too:" in whole and all(offer in whole for offer in offers)


@pytest.mark.parametrize("verb", ["predict", "explain", "whatif --change precision=fp32"])
def test_a_report_shows_what_would_fit(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, page = "gpt2-xl --cluster '4 V100' --global-batch 32 --precision fp16", tmp_path / "page.html"
    command = answer(capsys, f"{verb} {job}")["would_fit"][0]["command"]
    assert run(capsys, f"{verb} {job} --report {page}")[0] == ExitCode.NO
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert "<h2>What would fit</h2>" in text and command in text


def test_explain_and_whatif_offer_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    job, change = "gpt2-xl --cluster '4 V100' --global-batch 32", "--change network=10Gb/s"
    offered = [answer(capsys, f"{verb} {job}")["would_fit"] for verb in ("predict", "explain", f"whatif {change}")]
    assert offered[0] and all([x["options"] for x in other] == [x["options"] for x in offered[0]] for other in offered)
    command = offered[2][0]["command"]
    assert command.startswith("paceline whatif gpt2-xl ") and change in command


@pytest.mark.long
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    network=st.sampled_from(["gpt2-xl", "llama-3.2-1b", "bert-large"]),
    machines=st.sampled_from(
        [
            "--device T4",
            "--cluster '4 V100'",
            "--cluster '1+3 T4' --network 25Gb/s",
            "--device g5.12xlarge",
        ]
    ),
    batch=st.sampled_from(["", "--global-batch 64", "--global-batch 4096"]),
    others=st.sampled_from(["", "--grad-accum 2", "--bucket 50MiB", "--option 'rank=4' --compression powersgd"]),
)
def test_the_printed_commands_fit(
    network: str, machines: str, batch: str, others: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"predict {network} {machines} {batch} {others}"
    data = answer(capsys, command)
    assert data["would_fit"] == [] or data["fit"] != "fits"
    printed = run(capsys, command)[1].replace("\\\n", " ")
    for place, offer in enumerate(data["would_fit"]):
        program, *words = shlex.split(offer["command"])
        assert program == "paceline" and main([*words, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["fit"] == "fits" and again["would_fit"] == []
        for name in ("memory_bytes", "step_time_s", "strategy", "cluster"):
            assert again[name] == offer[name], (name, offer["command"])
        assert place or offer["command"] in " ".join(printed.split())


def test_where_nothing_is_found_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    job = "predict mixtral-8x7b --cluster '1+3 A100' --network 25Gb/s --tensor 4 --sequence"
    assert answer(capsys, job)["would_fit"] == []
    assert "No change that was tried makes it fit." in " ".join(run(capsys, job)[1].split())
