"""Emitted files start a training run: the tool reads the file and trains a toy in two processes of one processor.

A file is run as it is written, except that the device is the processor and the port a free one. Last run with torch 2.13.0,
Accelerate 1.15.0, DeepSpeed 0.19.8, Lightning 2.6.6.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning.emit.job import PORT, EmittedJob
from paceline.planning.emit.targets import Emitted, emitted

pytestmark = pytest.mark.long
NETWORK = Workload.named("gpt2")
BEGIN = """
import os, torch
torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(2)]
model = torch.nn.Sequential(*blocks, torch.nn.Linear(64, 1))
inputs = torch.randn(128, 64)
targets = inputs.mean(1, keepdim=True) + 1
samples = torch.utils.data.TensorDataset(inputs, targets)

def judge(when):
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(inputs.to(next(model.parameters()).dtype)).float(), targets)
    if torch.distributed.get_rank() == 0:
        print(f"{when} loss {loss.item():.4f} of {torch.distributed.get_world_size()} ranks", flush=True)
"""
LOOP = """
judge("first")
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
judge("last")
"""
END = """
import os, sys
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""
"""The objects that still hold gloo's threads when the interpreter ends may abort the process, so it ends before."""
LOADER = "loader = torch.utils.data.DataLoader(samples, 4{})\n"
TORCH = "torch.distributed.init_process_group('gloo')\n" + LOADER.format(
    ", sampler=torch.utils.data.DistributedSampler(samples)"
)
ACCELERATE = "from accelerate import Accelerator\n" + LOADER.format("")
DEEPSPEED = """
import argparse, deepspeed
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
given = {"model": model, "model_parameters": list(model.parameters()), "training_data": samples}
model, optimizer, loader, _ = deepspeed.initialize(parser.parse_args(), **given)
"""
LIGHTNING = """
import lightning

class Toy(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = model

    def forward(self, x):
        return self.inner(x)

    def training_step(self, batch, number):
        return torch.nn.functional.mse_loss(self.inner(batch[0]), batch[1])

    def on_train_start(self):
        judge("first")

    def on_train_end(self):
        judge("last")

    def configure_optimizers(self):
        return OPTIMIZER

data = torch.utils.data.DataLoader(samples, 4)
inner, model = model, Toy()
"""


def file_of(target: str, **choices: Any) -> Emitted:
    usual = {"world_size": 2, "global_batch_size": 8, "precision": "bf16", "optimizer": "adamw"}
    strategy = Strategy.of(**{**usual, **choices})
    return emitted(EmittedJob(target, strategy, NETWORK, Cluster.named("2 A100"), samples=128))


def lines(text: str) -> str:
    """The lines of Python that a file holds as remarks, with a rate."""
    inside = [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")]
    code = [line for line in inside if not line.startswith(("In train.py", "#", "with torch.autocast"))]
    return "\n".join(code).replace("lr=...", "lr=0.01") + "\n"


def losses(folder: Path, command: str, **environment: str) -> list[float]:
    """Losses that a command prints, which the tools of this Python run."""
    for name, module in (("torchrun", "torch.distributed.run"), ("accelerate", "accelerate.commands.launch")):
        program, skipped = folder / name, "shift; " if name == "accelerate" else ""  # what is on PATH may be of another Python
        program.write_text(f'#!/bin/sh\n{skipped}exec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    tools = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    one = {"OMP_NUM_THREADS": "1", "PATH": tools, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **one}, capture_output=True, text=True, timeout=500
    )
    found = re.findall(r"(?:first|last) loss ([\d.]+) of 2 ranks", done.stdout)
    print(command, done.stdout, sep="\n")
    assert done.returncode == 0 and len(found) == 2, done.stdout + done.stderr
    return [float(loss) for loss in found]


def free_port() -> int:
    """Return a port that no other test uses: several may run at the same time."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


def needs(tool: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"needs {tool}: pip install {tool}")


COMPRESSED = {"compression": "terngrad", "exchange": "sharded"}


@pytest.mark.parametrize("choices", [{}, {"sharding": "zero1"}, {"sharding": "zero3"}, COMPRESSED], ids=str)
def test_torchrun_starts_its_script(choices: dict[str, Any], tmp_path: Path) -> None:
    needs("torch")
    file = file_of("torchrun", **choices)
    (tmp_path / "run.sh").write_text(file.text)
    (tmp_path / "train.py").write_text(BEGIN + TORCH + lines(file.text) + LOOP + END)
    first, last = losses(tmp_path, file.launch("run.sh"))
    assert last < first


@pytest.mark.parametrize("choices", [{}, {"sharding": "zero3"}], ids=str)
def test_accelerate_starts_its_file(choices: dict[str, Any], tmp_path: Path) -> None:
    needs("accelerate")
    file = file_of("accelerate", **choices)
    text = file.text.replace("use_cpu: false", "use_cpu: true")
    text = text.replace(f"main_process_port: {PORT}", f"main_process_port: {free_port()}")
    (tmp_path / "run.yaml").write_text(text.replace("TRANSFORMER_BASED_WRAP", "NO_WRAP"))  # the toy has no blocks by name
    loop = LOOP.replace("loss.backward()", "accelerator.backward(loss)")
    (tmp_path / "train.py").write_text(BEGIN + ACCELERATE + lines(file.text) + loop)
    first, last = losses(tmp_path, file.launch("run.yaml"))
    assert last < first


@pytest.mark.parametrize("choices", [{}, {"sharding": "zero1"}, {"sharding": "zero2"}, {"sharding": "zero3"}], ids=str)
def test_deepspeed_starts_its_file(choices: dict[str, Any], tmp_path: Path) -> None:
    needs("deepspeed")
    file = file_of("deepspeed", **choices)
    (tmp_path / "run.json").write_text(file.text)
    loop = LOOP.replace("    optimizer.step()\n    optimizer.zero_grad()\n", "    model.step()\n")
    loop = loop.replace("loss.backward()", "model.backward(loss)")
    (tmp_path / "train.py").write_text(BEGIN + DEEPSPEED + loop)
    command = file.launch("run.json").replace("deepspeed ", f"deepspeed --master_port {free_port()} ", 1)
    first, last = losses(tmp_path, command, DS_ACCELERATOR="cpu")
    assert json.loads(file.text)["optimizer"]["params"]["lr"] > 0 and last < first


def test_lightning_starts_its_script(tmp_path: Path) -> None:
    needs("lightning")
    file = file_of("lightning")
    (tmp_path / "run.py").write_text(file.text.replace('accelerator="gpu"', 'accelerator="cpu"'))
    optimizer = lines(file.text).split("optimizer = ")[1].strip()
    (tmp_path / "train.py").write_text((BEGIN + LIGHTNING).replace("OPTIMIZER", optimizer))
    assert shlex.split(file.launch("run.py"))[0] == "torchrun"
    first, last = losses(tmp_path, file.launch("run.py"))
    assert last < first
