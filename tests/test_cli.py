"""The command line: its words are frozen, a mistake is one line, and ``--json`` is one object on stdout."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline
import samples
from paceline.cli import Parser, build_parser, main
from paceline.codecs import bench
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.strategy import COMPRESSIONS, EXCHANGES

TRAIN = (
    "--model --data --workers --compression --exchange --option --optimizer --variant --momentum --weight-decay --lr --warmup"
    " --decay --scale-from --scaling --global-batch --epochs --seed --out --resume"
)
PREDICT = (
    "--device --devices-per-node --nodes --network --global-batch --precision --compression --exchange --servers --option"
    " --grad-accum --bucket --sharding --recompute --optimizer --software --loader --records --seq-len"
)
PLAN = (
    "--device --devices-per-node --network --max-nodes --goal --max-loss --target --epochs --samples --global-batch --precision"
    " --compression --exchange --servers --sharding --penalty --price --why-not --report --optimizer --software --records"
    " --seq-len"
)
COMMANDS = {
    "": "--version --help",
    "predict": f"WORKLOAD {PREDICT} --asynchronous --server-device --report --json --help",
    "plan": f"WORKLOAD {PLAN} --json --help",
    "explain": f"WORKLOAD {PREDICT} --run --trace --report --json --help",
    "whatif": f"WORKLOAD {PREDICT} --change --scaling --price --report --json --help",
    "train": f"{TRAIN} --json --help",
    "validate": "NAME FILE.csv --info --hold-out --json --help",
    "hardware": "--help",
    "hardware list": "--json --help",
    "hardware show": "NAME --json --help",
    "hardware probe": "--workers --json --help",
    "workload": "--help",
    "workload list": "--json --help",
    "workload show": "NAME|module:function --json --help",
    "report": "DIR --json --help",
    "bench": "--help",
    "bench codec": "--size --codec --backend --threads --json --help",
    "bench optimizer": "--network --optimizer --variant --device --threads --json --help",
    "lab": "--help",
    "lab up": "--hosts --link --latency --loopback --name --json --help",
    "lab exec": "COMMAND --per-host --timeout --name --json --help",
    "lab status": "--name --json --help",
    "lab down": "--name --json --help",
}
"""Every command with everything it takes. A script relies on these words: add, never rename."""


def parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, sub in action.choices.items():
                yield from parsers(sub, f"{name} {word}".strip())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def one_object(out: str) -> dict[str, Any]:
    """The only line of ``out``, as strict JSON."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    assert out.count("\n") == 1 and out.endswith("\n")
    data = json.loads(out, parse_constant=refuse)
    assert isinstance(data, dict)
    return data


def test_the_command_line_is_frozen() -> None:
    found = {}
    for name, parser in parsers(build_parser()):
        words = set()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            words |= {o for o in action.option_strings if o.startswith("--")} or {str(action.metavar)}
        found[name] = words
    assert found == {name: set(words.split()) for name, words in COMMANDS.items()}


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


@pytest.mark.parametrize("command", ["", "hardware", "workload", "lab"])
def test_without_a_command_the_help_is_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *command.split())
    assert (code, err) == (0, "") and out.startswith("usage: paceline")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, "paceline 0.1.0\n", "")


ON_FOUR = shlex.split("predict lenet5 --device A100 --nodes 4 --network 10Gb/s --global-batch 64")


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
    code, out, err = run(capsys, *command.split(), "--json")
    assert (code, err) == (0, "")
    assert set(keys.split()) <= set(one_object(out))
    text = run(capsys, *command.split())
    assert text[0] == 0 and text[1].count("\n") > 1 and text[2] == ""


def test_bench_codec_json_is_one_object_per_codec_and_direction(capsys: pytest.CaptureFixture[str]) -> None:
    command = "bench codec --size 40kB --codec ternary bf16 --codec fp32 --threads 1 --json"
    code, out, err = run(capsys, *shlex.split(command))
    assert (code, err) == (0, "")
    found = [one_object(line + "\n") for line in out.splitlines()]
    directions = ("encode", "decode", "decode_add")
    assert [(f["codec"], f["direction"]) for f in found] == [(c, d) for c in ("ternary", "bf16", "fp32") for d in directions]
    for speed in found:
        assert speed["gb_per_s"] > 0 and speed["memcpy_gb_per_s"] > 0 and speed["elements"] == 10_000
        assert speed["low_gb_per_s"] <= speed["gb_per_s"] <= speed["high_gb_per_s"]
        assert speed["gb_per_s_per_core"] == speed["gb_per_s"] / speed["threads"]
    assert found[0]["ratio"] == 40_000 / (32 + 2500)


def test_bench_codec_takes_the_backend_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *shlex.split("bench codec --size 4kB --codec int8 --backend reference --json"))
    assert (code, err) == (0, "") and {one_object(line + "\n")["backend"] for line in out.splitlines()} == {"reference"}
    with pytest.raises(SystemExit):
        run(capsys, "bench", "codec", "--help")
    assert "one JSON object a line" in " ".join(capsys.readouterr().out.split())


def test_bench_codec_text_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "bench", "codec", "--size", "4kB")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert "decode_add" in out and "memcpy" in out


@pytest.mark.parametrize("rate", [3e-6, 0.00497, 0.0265, 1.234, 98765.4])
def test_rates_of_any_size_fit_the_terminal(rate: float) -> None:
    speed = bench.Speed(
        codec="inceptionn-scaled",
        direction="decode_add",
        backend="reference",
        threads=1,
        elements=1000,
        ratio=12.34,
        repetitions=15,
        gb_per_s=rate,
        low_gb_per_s=rate,
        high_gb_per_s=rate,
        gb_per_s_per_core=rate,
        memcpy_threads=1,
        memcpy_gb_per_s=rate,
        memcpy_gb_per_s_per_core=rate,
        relative_to_memcpy=1.0,
    )
    assert max(map(len, bench.text([speed]).splitlines())) <= 80


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_predict_json_has_every_number(compression: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *ON_FOUR, "--compression", compression, "--json")
    assert (code, err) == (0, "")
    data = one_object(out)
    names = "step_time_s samples_per_s compute_s comm_s exposed_comm_s wire_bytes_per_device memory_bytes low_s high_s"
    for name in names.split():
        assert isinstance(data[name], int | float) and data[name] > 0, name
    assert data["low_s"] <= data["step_time_s"] <= data["high_s"]
    assert data["step_time_s"] == pytest.approx(data["compute_s"] + data["exposed_comm_s"])
    assert data["samples_per_s"] == pytest.approx(64 / data["step_time_s"])
    assert isinstance(data["bottleneck"], str) and data["bottleneck"]
    assert isinstance(data["assumptions"], list) and all(isinstance(a, str) and a for a in data["assumptions"])
    assert data["strategy"]["compression"] == compression and data["strategy"]["world_size"] == 4


def test_predict_takes_options_and_every_exchange(capsys: pytest.CaptureFixture[str]) -> None:
    for exchange in EXCHANGES:
        assert run(capsys, *ON_FOUR, "--exchange", exchange, "--json")[0] == 0, exchange
    words = ["--compression", "inceptionn-scaled", "--exchange", "ring", "--option", "bound=2^-8", "--option", "ratio=4"]
    code, out, _ = run(capsys, *ON_FOUR, *words, "--json")
    assert code == 0 and one_object(out)["strategy"]["options"] == {"bound": 2**-8, "ratio": 4}
    text = " ".join(run(capsys, *ON_FOUR, *words)[1].split())
    assert "exchange ring, bound 0.00390625, ratio 4" in text and "depends on the gradients" in text


@pytest.mark.parametrize("command", ["predict", "train"])
def test_help_names_every_compression_exchange_and_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace("(", " ").split()
    options = {o.name for c in COMPRESSIONS.values() for o in c.options}
    assert set(COMPRESSIONS) | set(EXCHANGES) | options <= set(words)


def test_predict_text_says_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = one_object(run(capsys, *ON_FOUR, "--json")[1])
    text = run(capsys, *ON_FOUR)[1]
    assert (
        data["bottleneck"] in text and "step time" in text and "first bucket 1.05 MB, bucket 26.2 MB" in " ".join(text.split())
    )
    assert max(map(len, text.splitlines())) <= 80


def test_report(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report", str(run_dir.path), "--json")
    assert code == 0 and one_object(out) == {"report": str(run_dir.report_path)}
    assert "<html" in run_dir.report_path.read_text()
    assert run(capsys, "report", str(run_dir.path)) == (0, f"report: {run_dir.report_path}\n", "")


USERS = """
import torch
from torch import nn

print("a word of the user's on stdout")

def divides(): return 1 / 0
def two_lines(): raise ValueError("first\\nsecond")
def leaves(): raise SystemExit("bye")
def text(): return "no"
def net(): return nn.Linear(4, 3), torch.empty(1, 4)
def narrow(): return nn.Linear(4, 2)
def lazy(): return nn.LazyLinear(4), torch.randn(2, 5)
def looks_up():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
        def forward(self, x): return self.layer({}["missing"])
    return Net(), torch.empty(1, 4)
def data():
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    return x, y, x, y
def three(): return data()[:3]
def unequal(): x, y, *rest = data(); return x[:5], y, *rest
def floats(): x, y, *rest = data(); return x, y.float(), *rest
def negative(): x, y, *rest = data(); return x, -y, *rest
answer = 42
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a user's: a module ``users``, one that fails, a file, an empty directory."""
    (tmp_path / "users.py").write_text(USERS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "script.py").write_text("import sys; sys.exit(3)\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("users", "broken", "script"):
        sys.modules.pop(name, None)


P = "predict lenet5 --device A100 --global-batch 64"
T = "train --model lenet5 --data digits --global-batch 64 --out out"
U = "train --model users:narrow --data users:data --global-batch 8 --out out"
MISTAKES = [
    # words of the command line
    ("predct", "unknown command 'predct'", "predict"),
    ("hardware lst", "unknown command 'lst'", "did you mean list?"),
    ("workload shw lenet5", "unknown command 'shw'", "did you mean show?"),
    ("--verison", "unknown option '--verison'", "did you mean --version?"),
    (f"{P} --precison bf16", "unknown option '--precison'", "--precision"),
    (f"{P} --compresion=bf16", "unknown option '--compresion'", "--compression"),
    ("predict lenet5 --devise A100 --global-batch 64", "unknown option '--devise'", "--device"),
    (f"{T} --epoch 3", "unknown option '--epoch'", "--epochs"),
    (f"{T} --batch 3", "unknown option '--batch'", "--global-batch"),
    ("hardware probe --worker 2", "unknown option '--worker'", "did you mean --workers?"),
    ("hardware list --jsn", "unknown option '--jsn'", "did you mean --json?"),
    (f"{P} extra", "unexpected argument 'extra'", "paceline predict --help"),
    ("predict", "required: WORKLOAD, --global-batch", "paceline predict --help"),
    ("predict lenet5 --global-batch 64", "no device is named", "--records of a run on yours"),
    ("predict lenet5 --device A100", "required: --global-batch", "paceline predict --help"),
    ("hardware show", "required: NAME", "paceline hardware show --help"),
    ("report", "required: DIR", "paceline report --help"),
    (f"{P} --nodes two", "invalid int value: 'two'", "--nodes"),
    (f"{P} --nodes 1.5", "invalid int value: '1.5'", "--nodes"),
    (f"{T} --lr fast", "invalid float value: 'fast'", "--lr"),
    (f"{P} --device", "expected one argument", "--device"),
    # names and numbers of a prediction
    ("predict lenet6 --device A100 --global-batch 64", "unknown workload 'lenet6'", "lenet5"),
    ("predict lenet5 --device A1000 --global-batch 64", "unknown device 'A1000'", "A100"),
    (f"{P} --precision fp61", "unknown precision 'fp61'", "did you mean fp16?"),
    (f"{P.replace('A100', 'K80')} --precision bf16", "unknown precision for K80 'bf16'", "legal: fp32"),
    (f"{P} --compression terngard", "unknown compression 'terngard'", "did you mean terngrad?"),
    (f"{P} --exchange shard", "unknown exchange 'shard'", "did you mean sharded?"),
    (f"{P} --compression terngrad --exchange allreduce", "'allreduce' cannot carry terngrad", "sharded"),
    (f"{P} --compression int8 --option blok=64", "unknown option of int8 'blok'", "did you mean block?"),
    (f"{P} --compression int8 --option block=65", "block 65 of int8", "a power of two from 64 to 65536"),
    (f"{P} --compression int8 --option block", "--option 'block' is not NAME=NUMBER", "bound=0.0078"),
    (f"{P} --option bound=1", "dense takes no option, 'bound' was given", "leave it out"),
    (f"{T} --compression topk --option density=2", "density 2 of topk", "from 0.0001 to 1"),
    (f"{P} --bucket 100", "'100' is not a size", "25MiB"),
    (f"{P} --bucket 1b", "0 bytes in a bucket", "from 1 up"),
    (f"{P} --loader -1", "a loader of -1 samples/s", "a positive number"),
    (f"{P} --asynchronous --loader 100", "simulated without an input pipeline", "leave --loader out"),
    (f"{P} --nodes -1", "num_nodes is -1", "from 1 up"),
    (f"{P} --nodes 0", "num_nodes is 0", "from 1 up"),
    (f"{P} --devices-per-node 0", "devices_per_node is 0", "from 1 up"),
    (f"{P} --nodes 2", "2 nodes have no network", "10Gb/s"),
    (f"{P} --nodes 2 --network 10Gbs", "'10Gbs' is not a bandwidth", "10Gb/s"),
    (f"{P} --nodes 2 --network 0Gb/s", "not a positive bandwidth", "10Gb/s"),
    (f"{P} --nodes 2 --network -3Gb/s", "--network", "--help"),
    (f"{P} --nodes 2 --network InfinibandHRD", "unknown network 'InfinibandHRD'", "InfiniBand HDR"),
    (f"{P.replace('64', '0')}", "global batch 0", "nearest legal: 1"),
    (f"{P.replace('64', '-8')} --nodes 4 --network 1Gb/s", "global batch -8", "nearest legal: 4"),
    (f"{P} --nodes 5 --network 1Gb/s", "global batch 64 does not divide among 5 workers", "60 or 65"),
    ("hardware show NVLnk3", "unknown device or link 'NVLnk3'", "NVLink3"),
    ("hardware show H10", "unknown device or link 'H10'", "H100"),
    ("hardware probe --workers 0", "0 workers", "from 1 up"),
    ("workload show alexnt", "unknown workload 'alexnt'", "alexnet"),
    # functions of the user's
    ("workload show users:nt", "no function 'nt' in module users", "did you mean net"),
    ("workload show user:net", "no module 'user'", "user.py"),
    ("workload show users:lazy", "(LazyLinear) has no shape until a first forward pass", "run the module on an example batch"),
    ("workload show users:answer", "users:answer is a int, not a function", ""),
    ("workload show users:", "not module:function", "mypackage.networks:build"),
    ("workload show users:divides", "users:divides fails: ZeroDivisionError: division by zero", ""),
    ("workload show users:two_lines", "users:two_lines fails: ValueError: first", ""),
    ("workload show users:leaves", "users:leaves fails: SystemExit: bye", ""),
    ("workload show users:looks_up", "fails on the example input: KeyError: 'missing'", ""),
    ("workload show users:text", "users:text returned str", "nn.Module"),
    ("workload show users:narrow", "no example input for users:narrow", "return (module, example_batch)"),
    ("workload show broken:net", "importing broken fails: ZeroDivisionError: division by zero", ""),
    ("workload show script:net", "importing script fails: SystemExit: 3", ""),
    # training
    ("train --data digits", "--model is missing", "paceline train --help"),
    ("train --model lenet5", "--data is missing", "paceline train --help"),
    (f"{T} --model lenet6", "unknown model 'lenet6'", "lenet5"),
    (f"{T} --data digit", "unknown data 'digit'", "did you mean digits?"),
    (f"{T} --data mnist:", "--data mnist: needs a directory", "mnist:DIR"),
    (f"{T} --data mnist:empty", "no train-images-idx3-ubyte.gz in empty", "four mnist .gz files"),
    (f"{T} --data fashion-mnist:absent", "in absent", "four fashion-mnist .gz files"),
    (f"{T} --optimizer adamm", "unknown optimizer 'adamm'", "did you mean adam?"),
    (f"{T} --workers 0", "0 workers", "from 1 up"),
    (f"{T} --workers 3", "global batch 64 does not divide among 3 workers", "63 or 66"),
    (f"{T} --epochs 0", "0 epochs", "from 1 up"),
    (f"{T} --lr 0", "learning rate 0.0", "positive number"),
    (f"{T} --lr nan", "learning rate nan", "positive number"),
    (f"{T} --global-batch 4096", "more than the 1438 training samples", "at most 1438"),
    (f"{T} --model alexnet", "alexnet does not take the samples of digits, 1x28x28", ""),
    (f"{T} --out file", "file is a file, not a directory", "--out"),
    (f"{T} --out file/under", "cannot write to file/under", "--out"),
    (f"{T} --resume empty", "no checkpoint.pt in empty", "--out directory"),
    (f"{T} --resume absent", "no checkpoint.pt in absent", "--out directory"),
    (f"{U} --model users:divides", "users:divides fails: ZeroDivisionError", ""),
    (f"{U} --model users:text", "users:text returned str", "torch.nn.Module"),
    (f"{U} --data users:divides", "users:divides fails: ZeroDivisionError", ""),
    (f"{U} --data users:dat", "no function 'dat' in module users", "did you mean data"),
    (f"{U} --data users:text", "users:text returned str", "four tensors"),
    (f"{U} --data users:three", "users:three returned tuple", "four tensors"),
    (f"{U} --data users:unequal", "5/32 and 32/32 samples and labels", "four tensors"),
    (f"{U} --data users:floats", "labels of torch.float32", "int64"),
    (f"{U} --data users:negative", "users:negative has the label -2, users:narrow has 2 outputs", "0 to 1"),
    (U, "users:data has the label 2, users:narrow has 2 outputs", "label from 0 to 1"),
    # benchmarks
    ("bench codec --codec ternery", "unknown codec 'ternery'", "ternary"),
    ("bench codec --size 100", "'100' is not a size", "25MiB"),
    ("bench codec --size 4kB --backend nativ", "unknown backend 'nativ'", "native"),
    ("bench codec --size 4kB --threads 0", "0 threads", "give 1 or more"),
    ("bench optimizer --network lenet", "unknown model 'lenet'", "lenet5"),
    ("bench optimizer --optimizer lam", "unknown optimizer 'lam'", "lamb"),
    ("bench optimizer --network lenet5 --variant nvlam", "unknown variant 'nvlam'", "nvlamb"),
    ("bench optimizer --network lenet5 --variant mlpref --optimizer lars", "unknown LARS variant 'mlpref'", "mlperf"),
    ("bench optimizer --device gpu", "unknown device 'gpu'", "cuda"),
    ("bench optimizer --threads 0", "0 threads", "give 1 or more"),
    # reports
    ("report absent", "no run directory absent", "paceline train --out absent"),
    ("report empty", "no record.jsonl in empty", "paceline train --out empty"),
    ("report file", "no run directory file", ""),
]


@pytest.mark.parametrize(("command", "what", "fix"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(
    command: str, what: str, fix: str, users: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *shlex.split(command))
    own = err.replace("a word of the user's on stdout\n", "")
    assert (code, out) == (2, "")
    assert own.startswith("paceline: ") and own.count("\n") == 1 and own.endswith("\n"), err
    assert what in own and fix in own and "Traceback" not in own


def test_a_name_of_several_lines_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["predict", "le\nnet", *ON_FOUR[2:]], ["predict", "lenet5", "--no\npe"], ["report", "a\nb"], ["a\nb"]):
        code, out, err = run(capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err


def test_what_the_users_code_prints_is_not_in_the_answer(users: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "workload", "show", "users:net", "--json")
    assert code == 0 and one_object(out)["name"] == "users:net"
    assert err == "a word of the user's on stdout\n"


def test_numbers_that_json_lacks_become_null(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = replace(samples.metrics("dense"), samples_per_s=float("nan"), high_s=float("inf"))
    monkeypatch.setattr("paceline.prediction.predictor.Predictor.step", lambda *given: prediction)
    code, out, _ = run(capsys, *ON_FOUR, "--json")
    data = one_object(out)
    assert (code, data["samples_per_s"], data["high_s"]) == (0, None, None)


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.hardware.cluster", stop)
    assert run(capsys, *ON_FOUR) == (130, "", "paceline: interrupted\n")
    monkeypatch.setattr("paceline.training.options.job_from", stop)
    code, _, err = run(capsys, "train")
    assert code == 130 and "go on with --resume" in err


def test_a_parser_raises_and_never_exits() -> None:
    with pytest.raises(UserError, match="paceline: what; see paceline --help"):
        Parser(prog="paceline").error("what")


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])}
PACELINE = (sys.executable, "-m", "paceline")


def test_a_mistake_seen_from_the_shell() -> None:
    done = subprocess.run(
        [*PACELINE, "workload", "show", "lenet6"], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("paceline: unknown workload 'lenet6'; nearest: lenet5") and done.stderr.count("\n") == 1


def test_a_terminal_without_the_letters_gets_the_numbers() -> None:
    done = subprocess.run(
        [*PACELINE, *ON_FOUR], capture_output=True, timeout=60, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"step time" in done.stdout and b"?" in done.stdout


@pytest.mark.parametrize("words", [("--json",), ()])
def test_a_reader_that_leaves_is_no_error(words: tuple[str, ...]) -> None:
    """As in ``paceline hardware list | head -1``."""
    read, write = os.pipe()
    os.close(read)
    command = [*PACELINE, "hardware", "list", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, env=ENVIRONMENT)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")
