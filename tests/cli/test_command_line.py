"""The command line as a whole: its words are frozen, ``--json`` is one object on stdout, and what a shell sees of it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from command import answer, run
from paceline.cli import build_parser, main
from paceline.strategy import COMPRESSIONS, EXCHANGES

EXCHANGE = (
    " --clip --min-elements --dense --no-compress-pull --ranks-per-node --codec-at --residual-bits --residuals-at --dense-bits"
    " --sync-every --fragments --sync-delay --mixing --outer-lr --outer-momentum"
    " --residual-decay --worker-devices --local-recipe"
)
TRAIN = (
    "--model --data --workers --compression --exchange --option --optimizer --variant --momentum --weight-decay --lr --warmup"
    " --decay --scale-from --scaling --global-batch --epochs --seed --out --resume --timeout --start --plan --teacher --distill"
    " --checkpoint-every --elastic --sharding --shard-devices --gather-bits --gather-format --memory-format --layout"
    " --precision --stored-weights --gradient-bits --grad-accum --micro-batches --recompute --recompute-layers --compile"
    " --batch-growth"
    " --branches --branch-epochs --tolerance" + EXCHANGE
)
SLIM = (
    "MODEL --method --target --weights --int8 --budget --threads --text --context --prompt --widths --predict --input --device"
    " --path-epochs --tune-epochs --distill --data --workers --compression --exchange --option --optimizer --variant --momentum"
    " --weight-decay --lr --warmup --decay --scale-from --scaling --global-batch --epochs --seed --out --report --timeout"
    " --start --memory-format --layout" + EXCHANGE
)
PREDICT = (
    "--round-deadline --max-age --worker-times"
    " --device --devices-per-node --nodes --cluster --on --network --leaf-nodes --oversubscription --global-batch --precision"
    " --micro-batch-size"
    " --compression --exchange --servers"
    " --option --grad-accum --bucket --sharding --recompute --optimizer --framework --software --attention --loader --records"
    " --seq-len --loss --from"
    " --args --input --lora"
    " --compile --no-compile --software-year --gather-bits --gather-format --gradient-bits --nic --aggregation"
    " --memory-format --layout --update --stored-weights --state-bits --task --tokens-per-sample --ema" + EXCHANGE
)
SEARCH = (
    " --precision --global-batch --micro-batch-size --compression --exchange --servers --sharding --recompute --optimizer"
    " --loss --tensor --context --pipeline --virtual-stages --expert --grad-accum --micro-batches --gather-bits --gather-format"
    " --gradient-bits"
    " --offload --schedule --codec-at --residual-bits --residuals-at --dense-bits --update --stored-weights --state-bits --ema"
    " --task --tokens-per-sample --memory-format --layout"
)
TRAINING = (
    " --from --target --epochs --samples --tokens --data --price --args --input --lora --seq-len --attention --compile"
    " --no-compile --framework --software --software-year --records --mtbf --checkpoint-interval --checkpoint-time"
    " --restart-time"
)
PLAN = (
    "--device --devices-per-node --network --max-nodes --goal --max-loss --penalty --why-not --report --emit --out --nic"
    " --critical-batches"
    " --aggregation" + SEARCH + TRAINING
)
ASK = "--on --cluster --network --by --budget" + SEARCH + TRAINING
SCHEDULED = (
    "TRACE --where --drop-too-large --any-type --cluster --profiles --knowledge --round --restart --queues --no-ageing"
    " --interference --checkpoint --outage --maintenance --failures --repair --price --stop-early --fairness --skipped --seed"
    " --out --report --brief --why --json --help"
)
MESH = (
    "--micro-batches --tensor --sequence --context --context-exchange --pipeline --virtual-stages --schedule --recompute-layers"
    " --first-stage-layers --last-stage-layers --shard-devices --offload --offload-layers --expert --expert-tensor"
    " --expert-imbalance --expert-exchange --expert-overlap"
)
SITES = "--sites --bandwidth --latency --picture --mtbf --checkpoint-interval --checkpoint-time --restart-time"
COMMANDS = {
    "": "--version --help",
    "predict": f"WORKLOAD {PREDICT} {MESH} --asynchronous --server-device --batch-growth --mtbf --checkpoint-interval"
    " --checkpoint-time --restart-time --report --brief --why --json --help",
    "memory": f"WORKLOAD {PREDICT} {MESH} --rank --picture --snapshot --report --brief --why --json --help",
    "plan": f"WORKLOAD {PLAN} --cluster --on --nodes --devices --brief --why --json --help",
    "diagnose": f"WORKLOAD {PREDICT} {MESH} --measured --log --seen --also --brief --why --json --help",
    "explain": f"WORKLOAD {PREDICT} {MESH} --run --trace --report --brief --why --json --help",
    "whatif": f"WORKLOAD {PREDICT} {MESH} --change --scaling --price --upgrade-price {SITES} --report --brief --why --json"
    " --help",
    "ask": f"WORKLOAD {ASK} --brief --why --json --help",
    "cluster": "--help",
    "cluster add": "NAME CLUSTER --price --brief --json --help",
    "cluster list": "--brief --json --help",
    "cluster remove": "NAME --brief --json --help",
    "schedule": "--help",
    "schedule run": f"{SCHEDULED} --policy",
    "schedule compare": f"{SCHEDULED} --policies --jobs",
    "schedule live": "JOBS.toml --executor --policy --queues --slots --gpus --device --network --lab --image --claim --queue"
    " --resource"
    " --namespace --context --round --restart --state"
    " --stop-early --report"
    " --why --brief --json --help",
    "schedule start": "QUEUE --job --new --history --nodes --cluster --queues --at --skipped --futures --hindcasts --seed"
    " --why --brief --json --help",
    "schedule why": "DIR JOB --policy --brief --json --help",
    "train": f"{TRAIN} --brief --why --json --help",
    "slim": f"{SLIM} --brief --why --json --help",
    "validate": "NAME FILE.csv --info --hold-out --brief --why --json --help",
    "records": "--help",
    "records import": "FILE --workload --cluster --network --global-batch --precision --seq-len --set --warmup --column --unit"
    " --out --brief --why --json --help",
    "hardware": "--help",
    "hardware list": "--brief --why --json --help",
    "hardware show": "NAME --brief --why --json --help",
    "hardware probe": "--workers --brief --why --json --help",
    "workload": "--help",
    "workload list": "WORD --group --brief --why --json --help",
    "workload show": "WORKLOAD --seq-len --args --input --lora --brief --why --json --help",
    "serve": "--host --schedule --queue --history --nodes --cluster --queues --port --json --help",
    "report": "DIR --brief --json --help",
    "bench": "--help",
    "bench codec": "--size --codec --backend --threads --brief --json --help",
    "bench optimizer": "--network --optimizer --variant --device --threads --brief --json --help",
    "lab": "--help",
    "lab up": "--hosts --link --latency --slurm --slots --switch --nic --nic-ports --mtu --ipv6 --loopback --name"
    " --brief --json --help",
    "lab exec": "COMMAND --per-host --timeout --name --json --help",
    "lab status": "--name --brief --json --help",
    "lab down": "--name --brief --json --help",
    "market": "--help",
    "market all": "SITES.toml --rule --out --brief --json --help",
    "market audit": "SPEEDS.csv --k --sigma --brief --json --help",
    "market emit": "SITES.toml --for --name --out --brief --json --help",
    "market equilibrium": "SITES.toml --price --gamma --alpha --choices --dynamic --brief --json --help",
    "market gain": "SITES.toml --site --rule --draws --brief --json --help",
    "market stable": "SITES.toml --rule --brief --json --help",
    "completion": "SHELL --brief --json --help",
    "help": "TOPIC --brief --json --help",
    "nic": "--help",
    "nic verify": "--values --no-proofs --brief --json --help",
    "nic area": "--family --block --seeds --no-clock --brief --json --help",
    "nic emit": "--out --brief --json --help",
    "nic engine": "--brief --json --help",
}
"""Every command with everything it takes. A script relies on these words: add, never rename."""


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from parsers(sub, f"{name} {word}".strip())


def test_the_command_line_is_frozen() -> None:
    found = {}
    for name, parser in parsers(build_parser()):
        words = set()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            words |= {o for o in action.option_strings if o.startswith("--")} or {str(action.metavar)}
        found[name] = words
    assert found == {name: {*words.split(), "--help-all"} for name, words in COMMANDS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_parses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 120 for line in out.splitlines())
    lines = out.partition("example:")[2].splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith("paceline ")]
    assert examples, f"{command} --help shows no example"
    for example in examples:
        options, rest = build_parser().parse_known_args(shlex.split(example)[1:])
        assert hasattr(options, "run") and rest == []
        assert command in example


@pytest.mark.parametrize("command", ["", "hardware", "workload", "lab", "schedule"])
def test_without_a_command_the_help_is_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, command)
    assert (code, err) == (0, "") and out.startswith("usage: paceline")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, "paceline 0.1.0\n", "")


ON_FOUR = "predict lenet5 --device A100 --nodes 4 --network 10Gb/s --global-batch 64"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("hardware list", "devices links"),
        ("hardware show A100", "name kind peak_flops memory memory_bandwidth link"),
        ("hardware show NVLink3", "name kind bandwidth latency"),
        ("workload list", "workloads"),
        ("workload show lenet5", "name layers parameters input_bytes sample source coverage"),
    ],
)
def test_json_is_one_object(command: str, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(keys.split()) <= set(answer(capsys, command))
    text = run(capsys, command)
    assert text[0] == 0 and text[1].count("\n") > 1 and text[2] == ""


@pytest.mark.parametrize("command", ["predict", "train"])
def test_help_names_every_compression_exchange_and_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    words = capsys.readouterr().out.replace(",", " ").replace("(", " ").split()
    options = {o.name for c in COMPRESSIONS.values() for o in c.options}
    assert set(COMPRESSIONS) | set(EXCHANGES) | options <= set(words)


def test_a_name_of_several_lines_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["predict", "le\nnet", *ON_FOUR.split()[2:]],
        ["predict", "lenet5", "--no\npe"],
        ["report", "a\nb"],
        ["a\nb"],
    ):
        code, (out, err) = main(words), capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.hardware.cluster", stop)
    assert run(capsys, ON_FOUR) == (130, "", "paceline: interrupted\n")
    monkeypatch.setattr("paceline.cli.commands.train.training_run", stop)
    assert run(capsys, "train") == (130, "", "paceline: interrupted\n")  # nothing is kept yet


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])}
PACELINE = (sys.executable, "-m", "paceline")


def test_a_mistake_seen_from_the_shell() -> None:
    done = subprocess.run(
        [*PACELINE, "workload", "show", "lenet6"], capture_output=True, text=True, timeout=200, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("paceline: unknown workload 'lenet6'; nearest: lenet5") and done.stderr.count("\n") == 1


def test_a_terminal_without_the_letters_gets_the_numbers() -> None:
    done = subprocess.run(
        [*PACELINE, *ON_FOUR.split()], capture_output=True, timeout=200, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"step time" in done.stdout and b"?" in done.stdout


@pytest.mark.parametrize("words", [("--json",), ()])
def test_a_reader_that_leaves_is_no_error(words: tuple[str, ...]) -> None:
    """As in ``paceline hardware list | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [*PACELINE, "hardware", "list", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=200, env=ENVIRONMENT)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
