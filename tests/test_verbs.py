"""The public verbs: names where a person would write one, wrong types refused, one model behind all answers."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import paceline
from paceline.cli import main
from paceline.errors import UserError

PUBLIC = {
    "AttachOptions",
    "Workload",
    "Cluster",
    "Strategy",
    "GradientExchange",
    "Parallelism",
    "Predictor",
    "Prediction",
    "RunRecord",
    "predict",
    "plan",
    "whatif",
    "explain",
    "diagnose",
    "schedule",
    "schedule_start",
    "slim",
    "train",
    "ask",
    "attach",
    "attach_local",
    "LARS",
    "LAMB",
    "UserError",
    "LostRank",
    "Muon",
    "OneBitAdam",
    "OneBitLamb",
    "Peers",
    "PayloadError",
    "ReplicasDiverged",
}


def test_the_whole_api_is_under_tab() -> None:
    assert set(paceline.__all__) == PUBLIC <= set(dir(paceline))
    assert not [name for name in dir(paceline) if not name.startswith("_") and name not in PUBLIC | {"annotations"}]


def test_names_are_values() -> None:
    named = paceline.predict("llama-3-8b", "2x8 A100", network="100Gb/s", global_batch_size=16, precision="bf16")
    cluster = paceline.Cluster.named("2x8 A100", network="100Gb/s")
    strategy = paceline.Strategy.of(world_size=16, global_batch_size=16, precision="bf16")
    assert paceline.predict(paceline.Workload.named("llama-3-8b"), cluster, strategy) == named
    assert paceline.Predictor().step(paceline.Workload.named("llama-3-8b"), cluster, strategy) == named


def test_the_command_line_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    words = "predict llama-3-8b --device A100 --devices-per-node 8 --nodes 2 --network 100Gb/s --global-batch 16 --json"
    code, printed = main(words.split()), json.loads(capsys.readouterr().out)
    p = paceline.predict("llama-3-8b", "2x8 A100", network="100Gb/s", global_batch_size=16)
    assert code == (0 if p.fits else 3)
    assert printed["step_time_s"] == p.step_time_s and printed["strategy"]["optimizer"] == p.strategy["optimizer"] == "adam"


def test_without_a_batch_the_largest_that_fits_is_taken() -> None:
    p = paceline.predict("resnet-50", "8 V100")
    batch = p.strategy["global_batch_size"]
    assert p.fits and batch % 8 == 0
    assert not paceline.predict("resnet-50", "8 V100", global_batch_size=2 * batch).fits or batch == 8 * 1024
    assert paceline.predict("llama-3-8b", "A100").strategy["global_batch_size"] == 1  # none fits


def test_explain_whatif_and_plan_take_names() -> None:
    explained = paceline.explain("resnet-50", "2x8 V100", network="10Gb/s", global_batch_size=1024)
    base = paceline.predict("resnet-50", "2x8 V100", network="10Gb/s", global_batch_size=1024)
    assert explained.prediction == base
    answer = paceline.whatif("resnet-50", "2x8 V100", changes="network=100Gb/s", network="10Gb/s", global_batch_size=1024)
    assert answer.base.prediction == base and answer.changes[0].speedup > 1
    best = paceline.plan("resnet-50", "2x4 V100", network="10Gb/s", batches=(512,), precisions=("fp16",)).ranking[0]
    assert best.cluster.device.name.startswith("V100")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paceline.predict(5, "A100"), "workload 5"),
        (lambda: paceline.predict("resnet-50", 8), "cluster 8"),
        (lambda: paceline.predict("resnet-50", "A100", {}), "strategy {}"),
        (lambda: paceline.predict("resnet-50", "A100", predictor=3), "predictor 3"),
        (lambda: paceline.predict("resnet-50", "A100", batch=3), "unknown choice of a strategy 'batch'"),
        (lambda: paceline.predict("resnet-50", "A100", global_batch_size="8"), "'8' samples in a global batch"),
        (lambda: paceline.predict("resnet-50", "2x8 A100"), "2 nodes have no network"),
        (lambda: paceline.predict("resnet-50", paceline.Cluster.named("A100"), network="10Gb/s"), "made already"),
        (lambda: paceline.whatif("resnet-50", "A100", changes=3, global_batch_size=8), "change 3"),
        (lambda: paceline.whatif("resnet-50", "A100", global_batch_size=8), "no change is given"),
        (lambda: paceline.plan("resnet-50", "A100", 3), "goal 3"),
        (lambda: paceline.plan("resnet-50", "A100", batch=3), "unknown choice of a space 'batch'"),
    ],
)
def test_a_wrong_type_is_a_user_error(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize(
    "verb", ["attach(None)", "LARS([])", "train('lenet5', 'digits', paceline.Strategy.of(world_size=1, global_batch_size=8))"]
)
def test_without_torch_one_line_says_what_to_install(verb: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport paceline\n"
        f"try: paceline.{verb}\nexcept paceline.UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.count("\n") == 1 and "PyTorch" in done.stdout and "pip install" in done.stdout, done


def test_without_torch_every_name_is_there() -> None:
    code = (
        "import sys, inspect; sys.modules['torch'] = None\nimport paceline\nfrom paceline import *\n"
        "assert all(hasattr(paceline, name) for name in paceline.__all__) and inspect.getmembers(paceline)\n"
        "print(LARS.__doc__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "needs PyTorch; install it" in done.stdout, done


@pytest.mark.parametrize(("device", "precision"), [("A100", "bf16"), ("V100", "fp16"), ("GTX 1080 Ti", "fp16")])
def test_mixed_precision_is_what_the_device_has(device: str, precision: str) -> None:
    assert paceline.predict("resnet50", device, precision="amp", global_batch_size=32) == paceline.predict(
        "resnet-50", device, precision=precision, global_batch_size=32
    )


def test_an_instance_is_a_cluster() -> None:
    rented = paceline.predict("llama3-8b", "2x p5.48xlarge", precision="bf16", sharding="fsdp2", global_batch_size=16)
    named = paceline.predict(
        "llama-3-8b", "2x8 H100", network="EFA 3200Gb/s", precision="bf16", sharding="zero3", global_batch_size=16
    )
    assert rented.step_time_s == named.step_time_s


def test_an_option_of_the_predictor_is_pointed_to() -> None:
    with pytest.raises(UserError, match=r"predictor=paceline\.Predictor\(framework='tuned'\)"):
        paceline.predict("gpt2", "8 H100", framework="tuned")
