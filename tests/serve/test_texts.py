"""The question in other forms asks the same."""

from __future__ import annotations

import shlex

import paceline
from paceline import predict
from paceline.cli.arguments.prediction_inputs import prediction_inputs
from paceline.cli.command_line import build_parser
from paceline.cli.parser import parse
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question
from paceline.serve.selection import Selection, selection, start
from paceline.serve.texts import command, copies, python, run_command

SMALL = {**start(), "workload": "gpt2", "global-batch": "64", "seq-len": "512", "compression": "dense"}
CHOSEN = selection({**SMALL, "recompute": "full", "tokens": "1B", "by": "3d", "budget": "500"}.items())
SPEED = selection({**SMALL, "network": "800Gb/s", "transport": "RoCE", "micro-batch-size": "2"}.items())


def asked(chosen: Selection = CHOSEN) -> Question:
    return question(chosen, Configurations())


def test_the_command_to_copy_asks_the_same() -> None:
    for chosen in (CHOSEN, SPEED):
        words = shlex.split(command(chosen))
        own = asked(chosen)
        assert words[0] == "paceline"
        assert prediction_inputs(parse(build_parser("predict"), words[1:])) == (own.workload, own.cluster, own.strategy)
    assert "'800Gb/s RoCE'" in command(SPEED)


def test_the_command_of_the_run_has_amount_and_limits() -> None:
    text = run_command(asked())
    assert text.startswith("paceline ask gpt2 --on '2x8 H100 SXM' --network 'InfiniBand NDR' --seq-len 512")
    o = parse(build_parser("ask"), shlex.split(text)[1:])
    assert (o.tokens, o.by, o.budget, o.recompute, o.global_batch) == (1e9, "3d", "500", ["full"], [64])


def test_the_python_to_copy_asks_the_same() -> None:
    for chosen in (CHOSEN, SPEED):
        own = asked(chosen)
        call = python(own).partition("print(")[2].removesuffix(")")
        assert eval(call, {"paceline": paceline}).step_time_s == predict(own.workload, own.cluster, own.strategy).step_time_s


def test_a_configuration_is_named_as_its_file() -> None:
    kept = Configurations()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100}
    name = kept.keep(repr({"model_type": "llama", **sizes}).replace("'", '"').encode())
    chosen = selection({"workload": name, "device": "H100 SXM", "seq-len": "64", "precision": "bf16"}.items())
    assert command(chosen).startswith("paceline predict config.json --seq-len 64 --device 'H100 SXM'")
    call = "paceline.predict(paceline.Workload.from_config('config.json', 64), '1x1 H100 SXM', precision='bf16')"
    assert call in python(question(chosen, kept))


def test_what_another_software_lacks_is_said_in_its_place() -> None:
    small = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "global-batch": "16", "precision": "bf16"}
    texts = {copy.title: copy for copy in copies(asked({**small, "compression": "terngrad"}))}
    assert texts["Command, one step"].text.endswith("--compression terngrad")
    assert "compression='terngrad'" in texts["Python"].text
    assert not texts["deepspeed"].text and "terngrad" in texts["deepspeed"].missing
    assert "zero_optimization" in {copy.title: copy for copy in copies(asked({**small, "sharding": "zero2"}))}["deepspeed"].text
