"""What the callbacks of all frameworks share: measured beside predicted, and the hook on a model that DDP wraps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distributed import launch_once
from paceline.calibration.records import observations
from paceline.errors import UserError
from paceline.integrations import step_comparison
from paceline.integrations.step_comparison import CallbackBase, StepComparison, attach_when_wrapped
from paceline.strategy import GradientExchange
from paceline.training.attach.attach_arguments import Arguments
from paceline.training.attach.attach_options import AttachOptions

SETTINGS = {"global_batch_size": 64, "precision": "fp32"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the steps take, in order; then one second each."""
    seconds: list[float] = []

    def moments() -> Iterator[float]:
        now = 0.0
        for taken in itertools.chain(seconds, itertools.repeat(1.0)):
            now += taken
            yield now

    made = moments()
    monkeypatch.setattr(step_comparison.time, "perf_counter", lambda: next(made))
    return seconds


def steps(comparison: StepComparison, count: int) -> None:
    for _ in range(count):
        comparison.step()


def test_measured_stands_beside_predicted(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    clock.extend([0, 9.0, 0.2, 0.2, 0.3, 0.1])
    comparison = StepComparison("lenet5", "8 A100")
    comparison.begin(nn.Linear(2, 2), SETTINGS)
    steps(comparison, 6)
    assert comparison.measured_s()[0] == pytest.approx(0.2)
    predicted = comparison.predicted()
    assert predicted.cluster["device"] == "A100 SXM 80GB" and predicted.strategy["world_size"] == 8
    comparison.end()
    line = capsys.readouterr().err
    assert (
        line.startswith("paceline: step measured 200 ms (half between 175 ms and 225 ms), predicted ") and line.count("\n") == 1
    )


def test_a_step_across_an_evaluation_is_not_measured(clock: list[float]) -> None:
    clock.extend([0, 1.0, 50.0, 1.0])
    comparison = StepComparison("lenet5", "8 A100")
    comparison.begin(nn.Linear(2, 2), SETTINGS)
    steps(comparison, 2)
    comparison.interrupt()
    steps(comparison, 2)
    assert comparison.steps == [1.0, 1.0]


def test_the_line_is_shown_after_some_steps_and_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    comparison = StepComparison("lenet5", "8 A100")
    comparison.begin(nn.Linear(2, 2), SETTINGS)
    steps(comparison, 21)
    comparison.end()
    assert capsys.readouterr().err.count("step measured") == 1
    comparison.begin(nn.Linear(2, 2), SETTINGS)
    steps(comparison, 22)
    comparison.end()
    assert capsys.readouterr().err.count("step measured") == 2


class Config:
    """Stands for a configuration of Hugging Face."""

    def to_dict(self) -> dict[str, Any]:
        """Of a small GPT-2."""
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "vocab_size": 100}
        return {"model_type": "gpt2", "activation_function": "gelu_new", **sizes}


class Tokens(nn.Module):
    """Takes tokens as transformers do."""

    config = Config()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return input_ids.float().sum()


def test_the_network_is_that_of_the_configuration_and_the_batch(clock: list[float]) -> None:
    comparison, model = StepComparison(cluster="A100"), Tokens()
    comparison.begin(model, SETTINGS)
    model(input_ids=torch.zeros(4, 48, dtype=torch.long))
    model(input_ids=torch.zeros(4, 16, dtype=torch.long))
    network = comparison._network_of()
    assert (network.sample, network.name) == ("sequence of 48 tokens", "gpt2")
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workload": "lenet5"}, "not predicted: this processor is not in the catalogue"),
        ({"cluster": "A100"}, "not predicted: the model has no configuration to read"),
        ({"workload": "lenet5", "cluster": "2x8 A100"}, "not predicted: 2 nodes have no network"),
        ({"workload": "lenet5", "cluster": "A100", "choices": {"precision": "fp9"}}, "unknown precision 'fp9'"),
    ],
)
def test_what_is_missing_is_said(clock: list[float], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], said: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    comparison = StepComparison(**given)
    comparison.begin(nn.Linear(2, 2), SETTINGS)
    assert comparison.text() == "paceline: this run: 0 steps, 0 after the warm-up"
    steps(comparison, 5)
    assert said in comparison.text() and "measured 1.00 s" in comparison.text()


def test_the_measured_step_is_kept_and_corrects_the_next_prediction(
    clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.extend([0, *[0.5] * 6])
    place = tmp_path / "jobs.csv"
    comparison = StepComparison("resnet-50", "8 V100", records=place, compression="int8", choices={"bucket_bytes": 100 << 20})
    comparison.begin(nn.Linear(2, 2), {**SETTINGS, "global_batch_size": 256, "grad_accum_steps": 2})
    steps(comparison, 7)
    before = comparison.predicted().step_time_s
    comparison.end()
    (seen,) = observations([place])
    assert (seen.step_s, seen.workload.name, seen.cluster.world_size) == (0.5, "resnet-50", 8)
    assert seen.strategy.gradient_exchange.compression.name == "int8" and seen.strategy.parallelism.micro_batches == 2
    assert seen.strategy.bucket_bytes == 100 << 20 and "sharding" in place.read_text()
    after = comparison.predicted().step_time_s
    assert abs(after - 0.5) < 0.05 < abs(before - 0.5)
    own = StepComparison(cluster="8 V100", records=place)
    own.begin(Tokens(), SETTINGS)
    steps(own, 4)
    own.end()
    assert f"nothing was added to {place}: a table of jobs names its networks" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"a table of jobs is a \.csv file"):
        StepComparison(records="jobs")


@pytest.mark.parametrize(
    ("compression", "keywords"),
    [
        ("int8", {"exchange": "ring"}),
        ("topk", {"density": 0.001, "residual_bits": 16}),
        ("terngrad", {"min_elements": 7, "clip": None, "seed": 3}),
        (GradientExchange("int8", "ring"), {}),
    ],
)
def test_what_is_attached_is_predicted(compression: str | GradientExchange, keywords: Any) -> None:
    callback = CallbackBase("lenet5", "4 A100", compression=compression, **keywords)
    callback.comparison.begin(nn.Linear(2, 2), SETTINGS)
    (attached,) = Arguments(compression, None, keywords).exchanges(4)
    assert callback.comparison._strategy().gradient_exchange == attached


def test_choices_of_a_callback_agree_with_its_compression() -> None:
    CallbackBase(compression="int8", choices={"exchange": "sharded"})
    with pytest.raises(UserError, match="'ring'}, and compression has exchange 'sharded'; give exchange next to compression"):
        CallbackBase(compression="int8", choices={"exchange": "ring"})


def test_one_process_compresses_nothing() -> None:
    with pytest.raises(UserError, match="one process exchanges no gradients"):
        attach_when_wrapped(nn.Linear(2, 2), lambda _: None)


def in_two_processes(rank: int, workers: int) -> tuple[str, bool, bool]:
    """What refuses a model that nothing wraps, whether DDP's model gets its hook, and whether ranks stay together."""
    torch.manual_seed(1)
    bare = nn.Linear(64, 32)
    attach_when_wrapped(bare, lambda _: None)
    bare.eval()
    bare(torch.ones(1, 64))
    bare.train()
    said = ""
    try:
        bare(torch.ones(1, 64))
    except UserError as error:
        said = error.message
    inner = nn.Linear(64, 32)
    hooks: list[object] = []
    callback = CallbackBase(compression="terngrad", options=AttachOptions(seed=3), min_elements=1)
    attach_when_wrapped(inner, lambda wrapped: hooks.append(callback._attach(wrapped, None)))
    model = DistributedDataParallel(inner)
    for step in range(2):
        model(torch.full((2, 64), 1.0 + rank + step)).square().sum().backward()
    gradient = inner.weight.grad
    assert gradient is not None
    both = [torch.empty_like(gradient) for _ in range(workers)]
    torch.distributed.all_gather(both, gradient)
    hooked = bool(getattr(model, "_comm_hooks", None)) and len(hooks) == 1
    return said, hooked and not inner._forward_pre_hooks, torch.equal(*both)


def test_the_hook_is_put_in_when_ddp_wraps_the_model() -> None:
    for said, hooked, together in launch_once(in_two_processes, 2):
        assert said == "compression needs DistributedDataParallel, and nothing of it wraps the model"
        assert hooked and together
