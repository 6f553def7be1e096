"""Lines of Megatron-LM and DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.calibration.imports.logs import read_log
from paceline.calibration.imports.measuring import Stated
from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.errors import UserError

ARGUMENTS = """using world size: 16, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel size: 4
------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  global_batch_size ............................... 32
  micro_batch_size ................................ 2
  optimizer ....................................... adam
  pipeline_model_parallel_size .................... 1
  recompute_granularity ........................... selective
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  tensor_model_parallel_size ...................... 4
  use_distributed_optimizer ....................... True
  virtual_pipeline_model_parallel_size ............ None
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""
LINES = (
    " [2025-04-13 23:41:12] iteration       10/   1000 | consumed samples:      320 | elapsed time per iteration (ms): 9147.6 |"
    " learning rate: 0.000000E+00 | global batch size:    32 | loss scale: 1.0 | number of skipped iterations:   0 |\n",
    " [2025-04-13 23:41:20] iteration       20/    1000 | consumed samples:      640 | elapsed time per iteration (ms): 820.7 |"
    " throughput per GPU (TFLOP/s/GPU): 210.1 | learning rate: 4.0E-05 | global batch size:    32 | lm loss: 1.07E+01 |\n",
    "0: iteration       30/    1000 | elapsed time per iteration (ms): 8.1E+02 | global batch size: 32 |\n",
)
DEEPSPEED = """[2024-04-21 02:45:40,722] [INFO] [config.py:1001:print]   gradient_accumulation_steps .. 2
[2024-04-21 02:45:40,722] [INFO] [config.py:1001:print]   train_batch_size ............. 64
[2024-04-21 02:45:40,722] [INFO] [config.py:1001:print]   world_size ................... 8
[2024-04-21 02:45:40,722] [INFO] [config.py:1001:print]   zero_optimization_stage ...... {stage}
worker-0: [2024-04-21 02:45:40,722] [INFO] [logging.py:96:log_dist] [Rank 0] step=3, skipped=0, lr=[1.5e-07], mom=[(0.9, 0.999)]
"""
RATES = "".join(
    f"[2024-04-21 02:45:4{step},722] [INFO] [timer.py:260:stop] epoch=0/micro_step={2 * step}/global_step={step},"
    f" RunningAvgSamplesPerSec=74.6, CurrSamplesPerSec={rate}, MemAllocated=4.75GB, MaxMemAllocated=15.59GB\n"
    for step, rate in ((3, 32.0), (4, 128.0))
)


def written(tmp_path: Path, text: str) -> Path:
    place = tmp_path / "train.log"
    place.write_text(text)
    return place


def steps_of(path: Path, global_batch: int | None = None) -> MeasuredSteps:
    return read_log(path, Stated(global_batch=global_batch)).measured_steps


def test_megatron_says_the_step_and_the_job(tmp_path: Path) -> None:
    steps = steps_of(written(tmp_path, ARGUMENTS + "".join(LINES)))
    assert list(steps.step_s) == pytest.approx([9.1476, 0.8207, 0.81])
    assert steps.processes == 16
    assert dict(steps.job) == {
        "tensor": "4",
        "seq_len": "4096",
        "optimizer": "adam",
        "global_batch": "32",
        "precision": "bf16",
        "sequence": "yes",
        "sharding": "distributed_optimizer",
        "recompute": "selective",
        "grad_accum": "4",
    }


def test_lines_without_arguments_say_the_batch_alone(tmp_path: Path) -> None:
    steps = steps_of(written(tmp_path, "".join(LINES)))
    assert (len(steps.step_s), dict(steps.job), steps.processes) == (3, {"global_batch": "32"}, 0)


@pytest.mark.parametrize(("stage", "sharding"), [("2", "zero2"), ("ZeroStageEnum.weights", "zero3"), ("0", "ddp")])
def test_deepspeed_says_samples_a_second(tmp_path: Path, stage: str, sharding: str) -> None:
    steps = steps_of(written(tmp_path, DEEPSPEED.format(stage=stage) + RATES))
    assert list(steps.step_s) == [2.0, 0.5]
    assert (steps.processes, dict(steps.job)) == (8, {"global_batch": "64", "grad_accum": "2", "sharding": sharding})


def test_deepspeed_without_its_settings_needs_the_batch(tmp_path: Path) -> None:
    place = written(tmp_path, RATES)
    with pytest.raises(UserError, match="not how many a step has; give --global-batch"):
        steps_of(place)
    assert list(steps_of(place, 128).step_s) == [4.0, 1.0]


def test_deepspeeds_own_timer_and_settings_are_read(tmp_path: Path) -> None:
    """The oracle: DeepSpeed itself writes the lines."""
    timer = pytest.importorskip("deepspeed.utils.timer", reason="needs deepspeed: pip install deepspeed")
    lines: list[str] = []
    settings = SimpleNamespace(enabled=True, synchronized=False)
    own = timer.ThroughputTimer(settings, batch_size=64, steps_per_output=1, logging_fn=lines.append)
    for _ in range(5):
        own.start()
        own.stop(global_step=True)
    steps = steps_of(written(tmp_path, "\n".join(lines)), 64)
    assert len(steps.step_s) == len(lines) == 3 and max(steps.step_s) < 1


def test_a_pipeline_of_deepspeed_says_seconds(tmp_path: Path) -> None:
    text = "".join(f"steps: {n} loss: 1.2345 iter time (s): {s} samples/sec: {32 / s}\n" for n, s in ((10, 0.512), (20, 0.5)))
    assert list(steps_of(written(tmp_path, text)).step_s) == [0.512, 0.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing of interest\n", "has no line of a step"),
        (LINES[0] + LINES[1].replace("size:    32", "size:    64"), "steps of 32, 64 samples"),
    ],
)
def test_a_log_that_does_not_say_a_step_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        steps_of(written(tmp_path, text))
    with pytest.raises(UserError, match="cannot read"):
        steps_of(tmp_path / "none")


def test_the_first_line_states_the_layout(tmp_path: Path) -> None:
    first = "using world size: 64, data-parallel size: 2, context-parallel size: 2, tensor-model-parallel size: 4, "
    (tmp_path / "log").write_text(f"{first}pipeline-model-parallel size: 4\n{''.join(LINES)}")
    job = read_log(tmp_path / "log").measured_steps.job
    assert [job.get(name) for name in ("tensor", "context", "pipeline")] == ["4", "2", "4"]
