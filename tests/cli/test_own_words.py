"""Options of other tools on the command line become the command's own words."""

from __future__ import annotations

import shlex

import pytest

from paceline.cli.arguments.own_words import in_own_words
from paceline.cli.command_line import build_parser
from paceline.cli.parser import parse
from paceline.errors import UserError

PREDICT = build_parser("predict").commands()["predict"]


def words(text: str) -> str:
    """The arguments of ``predict`` in its own words."""
    legal = (*PREDICT.options(), *PREDICT.operands())
    return shlex.join(in_own_words(PREDICT.prog, shlex.split(text), legal, PREDICT.valued_options()).arguments)


@pytest.mark.parametrize(
    ("typed", "own"),
    [
        ("gpt2 --bs 4 --ga 2", "gpt2 --micro-batch-size 4 --grad-accum 2"),
        ("gpt2 --per_device_train_batch_size=4", "gpt2 --micro-batch-size 4"),
        ("gpt2 --per-device-train-batch-size 4", "gpt2 --micro-batch-size 4"),
        ("gpt2 --micro_batch_size 4 --global_batch 8", "gpt2 --micro-batch-size 4 --global-batch 8"),
        ("gpt2 --tensor-model-parallel-size 4 --pp 2", "gpt2 --tensor 4 --pipeline 2"),
        ("gpt2 --training.seq_len 4096", "gpt2 --seq-len 4096"),
        ("gpt2 --gradient_checkpointing --bf16 --fp16 False", "gpt2 --recompute full --precision bf16"),
        ("--gradient-checkpointing gpt2", "gpt2 --recompute full"),
        ("gpt2 --gradient_checkpointing False", "gpt2 --recompute none"),
        ("gpt2 --recompute full --offload optimizer", "gpt2 --recompute full --offload optimizer"),
        ("gpt2 --recompute --tp 2", "gpt2 --recompute --tensor 2"),
        ("gpt2 --sharding zero2 --offload cpu", "gpt2 --sharding zero2 --offload optimizer"),
        ("gpt2 --fsdp 'full_shard auto_wrap offload'", "gpt2 --sharding zero3 --offload weights+optimizer"),
        ("gpt2 --cluster '2x8 A100' --sharding hsdp", "gpt2 --cluster '2x8 A100' --sharding zero3 --shard-devices 8"),
        ("gpt2 --sharding zero++", "gpt2 --sharding zero3 --gather-bits 8"),
        ("gpt2 --attention flash --torch_compile True", "gpt2 --attention fa2 --compile"),
        ("gpt2 --torch_compile False", "gpt2 --no-compile"),
        ("gpt2 --attention sdpa", "gpt2 --attention sdpa"),
        ("--model_name_or_path gpt2 --lora_r 8", "gpt2 --lora lora,r=8"),
        ("gpt2 --fp8-format hybrid --bf16 --fp8-recipe blockwise", "gpt2 --precision fp8-block"),
        ("gpt2 --sequence-parallel --tp 2", "gpt2 --sequence --tensor 2"),
        ("gpt2 --nope 3 --bs 4", "gpt2 --nope 3 --micro-batch-size 4"),
        ("gpt2 --num_processes 16 --nnodes 2", "gpt2 --nodes 2 --devices-per-node 8"),
    ],
)
def test_words(typed: str, own: str) -> None:
    assert sorted(words(typed).split(" --")) == sorted(own.split(" --"))


def test_words_of_the_command_stay_as_they_are() -> None:
    given = "gpt2 --device A100 --lora r=8 --change nodes+1 --brief -- --bs 4"
    assert words(given) == given


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("gpt2 --per_device_train_batch_size many", "'many' is not a whole number"),
        ("gpt2 --bs", "--bs has no value"),
        ("gpt2 --zero-stage 5", "zero_stage '5'"),
        ("gpt2 --sharding hsdp", "no machines are named"),
    ],
)
def test_what_has_no_meaning_is_an_error(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        words(typed)


def test_what_was_read_is_said() -> None:
    given = parse(build_parser(), shlex.split("predict gpt2 --bs 4 --sharding zero++ --cluster '8 A100'"))
    assert (given.micro_batch_size, given.sharding, given.gather_bits) == (4, "zero3", 8)
    assert "samples of one device" in given.read_as.notes[0] and "8 bits" in given.read_as.notes[1]


def test_own_options_of_the_same_name_stay() -> None:
    given = parse(build_parser(), shlex.split("train --model lenet5 --data digits --global_batch 8"))
    assert (given.model, given.global_batch) == ("lenet5", 8)


def test_commands_without_the_choice_keep_their_errors() -> None:
    with pytest.raises(UserError, match="unknown option '--budget'; write --goal budget=500"):
        parse(build_parser(), ["plan", "gpt2", "--budget", "4"])
    given = parse(build_parser(), ["lab", "exec", "--", "echo", "--bs", "4"])
    assert given.read_as.arguments == ("--", "echo", "--bs", "4") and given.read_as.notes == ()


@pytest.mark.parametrize("command", ["ask", "plan"])
@pytest.mark.parametrize("typed", ["--sequence-parallel", "--sp true", "--parallelism.enable_sequence_parallel"])
def test_a_search_takes_the_word_for_what_it_always_does(command: str, typed: str) -> None:
    parser = build_parser(command).commands()[command]
    legal = (*parser.options(), *parser.operands())
    read = in_own_words(parser.prog, shlex.split(f"{typed} gpt2"), legal, parser.valued_options())
    assert read.arguments == ("gpt2",)
    assert read.notes == (f"{typed.split()[0]}: tensor parallelism is searched with sequence parallelism.",)
    with pytest.raises(UserError, match="with every tensor parallelism; leave it out"):
        in_own_words(parser.prog, ["gpt2", "--no-sequence-parallel"], legal, parser.valued_options())
    assert words("gpt2 --sequence-parallel --tensor 2") == "gpt2 --tensor 2 --sequence"
