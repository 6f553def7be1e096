"""The callback in Hugging Face's own Trainer, on the CPU. Last run with transformers 5.23.0 and accelerate 1.15.0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")

import torch  # noqa: E402

import paceline  # noqa: E402
from paceline.integrations.transformers import PacelineCallback, settings_of  # noqa: E402

TOKENS = 16


def trainer(folder: Path, callback: PacelineCallback, steps: int = 8, **settings: Any) -> Any:
    """A Trainer of a GPT-2 with two narrow blocks."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, vocab_size=100)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 100, (64, TOKENS))]
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, **{**quiet, **settings}
    )
    model = transformers.GPT2LMHeadModel(config)
    return transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])


def test_the_trainer_shows_predicted_beside_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = PacelineCallback(cluster="A100")
    trainer(tmp_path, callback, gradient_accumulation_steps=2, eval_strategy="no").train()
    assert len(callback.comparison.steps) == 7
    predicted = callback.comparison.predicted()
    assert predicted.workload == "gpt2" and predicted.strategy["global_batch_size"] == 8
    assert (predicted.strategy["grad_accum_steps"], predicted.strategy["optimizer"]) == (2, "adamw")
    assert callback.comparison._tokens == TOKENS
    assert "paceline: step measured " in (said := capsys.readouterr().err) and ", predicted " in said


def test_steps_beside_a_checkpoint_do_not_count(tmp_path: Path) -> None:
    callback = PacelineCallback(cluster="A100")
    trainer(tmp_path, callback, save_strategy="steps", save_steps=4).train()
    assert len(callback.comparison.steps) == 6


NAMES = {field.name for field in fields(transformers.TrainingArguments)}
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in NAMES else "gradient_checkpointing"
"""Name of the option, which changes with version 6."""


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, {"precision": "fp32", "optimizer": "adamw"}),
        ({"bf16": True, "optim": "sgd"}, {"precision": "bf16", "optimizer": "sgd"}),
        ({CHECKPOINTING: True, "optim": "adafactor"}, {"precision": "fp32", "recompute": "full", "optimizer": "adafactor"}),
    ],
)
def test_settings_of_the_trainer_are_choices(tmp_path: Path, given: dict[str, Any], settings: dict[str, Any]) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path), per_device_train_batch_size=4, use_cpu=True, **given)
    assert settings_of(arguments) == {"global_batch_size": 4, "grad_accum_steps": 1, **settings}


@pytest.mark.parametrize(
    ("given", "sharding"),
    [
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, "zero2"),
        ({"fsdp": True, "fsdp_config": None}, "zero3"),
        ({"hf_deepspeed_config": SimpleNamespace(config={"zero_optimization": {"stage": 1}})}, "zero1"),
    ],
)
def test_a_sharding_is_a_choice(tmp_path: Path, given: dict[str, Any], sharding: str) -> None:
    plain = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    names = ("gradient_accumulation_steps", "per_device_train_batch_size", "bf16", "fp16", "tf32", "optim")
    values = {name: getattr(plain, name) for name in (*names, "gradient_checkpointing", "fsdp", "fsdp_config")}
    arguments = SimpleNamespace(**{**values, "world_size": 2, **given})
    assert settings_of(arguments)["sharding"] == sharding


def test_compression_in_one_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(paceline.UserError, match="one process exchanges no gradients"):
        trainer(tmp_path, PacelineCallback(compression="terngrad")).train()


SCRIPT = """
import json, sys
from dataclasses import fields
from pathlib import Path
import torch
sys.path.insert(0, {here!r})
from test_transformers import trainer
from paceline.integrations.transformers import PacelineCallback
job = trainer(Path({folder!r}), PacelineCallback(cluster="2 A100", compression="terngrad", min_elements=1), ddp_backend="gloo")
job.train()
wrapped = job.model_wrapped
hook = wrapped._comm_hooks[0][1]
sums = [p.double().sum().item() for p in job.model.parameters()]
every = [None, None]
torch.distributed.all_gather_object(every, sums)
if torch.distributed.get_rank() == 0:
    print(json.dumps({{"kind": type(wrapped).__name__, "hook": str(hook), "same": every[0] == every[1]}}))
"""


RESUMED = """
import sys
from dataclasses import fields
from pathlib import Path
import torch
sys.path.insert(0, {here!r})
from test_transformers import trainer
from paceline.integrations.transformers import PacelineCallback

def run(name, steps, resume=None):
    callback = PacelineCallback(cluster="2 A100", compression="topk", min_elements=1)
    settings = dict(ddp_backend="gloo", save_strategy="steps", save_steps=4, lr_scheduler_type="constant")
    job = trainer(Path({folder!r}) / name, callback, steps, **settings)
    job.train(resume_from_checkpoint=resume)
    return [p.detach().clone() for p in job.model.parameters()]

whole = run("whole", 8)
first = run("cut", 4)
again = run("cut", 8, resume=True)
same = all(map(torch.equal, whole, again))
for file in Path({folder!r}, "cut", "checkpoint-4").glob("paceline_rank*.pt"):
    if torch.distributed.get_rank() == 0:
        file.unlink()
torch.distributed.barrier()
without = run("cut", 8, resume=str(Path({folder!r}, "cut", "checkpoint-4")))
differs = not all(map(torch.equal, whole, without))
print("RESULT", same, differs, flush=True)
"""


def test_a_resumed_run_continues_with_its_residuals(tmp_path: Path) -> None:
    done = launched(tmp_path, RESUMED)
    assert done.stdout.count("RESULT True True") == 2
    assert "has no state of a compression: residuals start at 0" in done.stderr


def launched(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A script in two processes."""
    script = folder / "train.py"
    script.write_text(text.format(here=str(Path(__file__).parent), folder=str(folder)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_compression_runs_in_two_processes(tmp_path: Path) -> None:
    done = launched(tmp_path, SCRIPT)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["kind"] == "DistributedDataParallel" and said["same"] and said["hook"].startswith("TernGrad")
    assert "paceline: step measured " in done.stderr
