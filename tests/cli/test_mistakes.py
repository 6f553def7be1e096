"""A mistake in any word of any command is one line that names the nearest legal thing, and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import objects, run
from each_row import each_row

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
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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
    ("predict", "required: WORKLOAD", "paceline predict --help"),
    ("predict lenet5 --global-batch 64", "no device is named", "--records of a run on yours"),
    ("predict lenet5 --cluster 2xA1000", "unknown device 'A1000'", "A100"),
    ("predict lenet5 --cluster '2x8 A100'", "2 nodes have no network", "2x8 A100, 100Gb/s"),
    ("predict lenet5 --cluster ''", "a cluster without a name", "2x8 A100"),
    (f"{P} --cluster A100", "--cluster says what --device says", "one of the two"),
    ("whatif lenet5 --cluster A100 --nodes 1 --change nodes+1", "--cluster says what --nodes says", "one of the two"),
    ("explain lenet5 --cluster A100 --devices-per-node 1", "--cluster says what --devices-per-node says", "one of the two"),
    ("hardware show", "required: NAME", "paceline hardware show --help"),
    ("report", "required: DIR", "paceline report --help"),
    (f"{P} --nodes two", "'two' is not a whole number", "--nodes"),
    (f"{P} --nodes 1.5", "'1.5' is not a whole number", "--nodes"),
    (f"{T} --lr fast", "'fast' is not a number", "--lr"),
    (f"{P} --device", "expected one argument", "--device"),
    # names and numbers of a prediction
    ("predict lenet6 --device A100 --global-batch 64", "unknown workload 'lenet6'", "lenet5"),
    ("predict lenet5 --device A1000 --global-batch 64", "unknown device 'A1000'", "A100"),
    (f"{P} --no-compress-pul", "unknown option '--no-compress-pul'; nearest: --no-compress-pull", "paceline predict --help"),
    (f"{P} --precision int8", "unknown precision 'int8'", "legal: fp32, tf32, bf16, fp16"),
    (f"{P} --precision fp61", "unknown precision 'fp61'", "did you mean fp16?"),
    (f"{P.replace('A100', 'K80')} --precision bf16", "unknown precision for K80 'bf16'", "legal: fp32"),
    (f"{P} --compression terngard", "unknown compression 'terngard'", "did you mean terngrad?"),
    (f"{P} --exchange shard", "unknown exchange 'shard'", "did you mean sharded?"),
    (f"{P} --compression terngrad --exchange allreduce", "'allreduce' cannot carry terngrad", "sharded"),
    (f"{P} --compression int8 --option blok=64", "unknown option of int8 'blok'", "did you mean block?"),
    (f"{P} --compression int8 --option block=65", "block 65 of int8", "a power of two from 64 to 65536"),
    (f"{P} --compression int8 --option block", "option 'block' is not NAME=NUMBER", "bound=0.0078"),
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
    (f"{T} --data mnist:", "data mnist: needs a directory", "mnist:DIR"),
    (f"{T} --data mnist:empty", "no train-images-idx3-ubyte.gz in empty", "four mnist .gz files"),
    (f"{T} --data fashion-mnist:absent", "in absent", "four fashion-mnist .gz files"),
    (f"{T} --optimizer adamm", "unknown optimizer 'adamm'", "did you mean adam?"),
    (f"{T} --workers 0", "0 workers", "from 1 up"),
    (f"{T} --workers 4096 --global-batch 4096", "4096 workers are too many for the ", "torchrun"),
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


@each_row(("command", "what", "fix"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    command: str, what: str, fix: str, users: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command)
    own = err.replace("a word of the user's on stdout\n", "")
    assert (code, out) == (2, "")
    assert own.startswith("paceline: ") and own.count("\n") == 1 and own.endswith("\n"), err
    assert what in own and fix in own and "Traceback" not in own


def test_what_the_users_code_prints_is_not_in_the_answer(users: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "workload show users:net --json")
    assert code == 0 and [data["name"] for data in objects(out)] == ["users:net"]
    assert err == "a word of the user's on stdout\n"
