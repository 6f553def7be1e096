"""Rows of any source in common columns: the case that each states, in made-up values, and the reason of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from each_row import each_row
from measured_rows import case, columns, write
from paceline.csv_rows import read
from paceline.validation import validate
from paceline.validation.sets.published import joined
from paceline.workload import Workload


def test_a_row_of_megatron() -> None:
    one = case("published")
    mesh = one.setting.strategy.parallelism
    assert one.step_s == pytest.approx(1.5) and one.published == {"simulator": pytest.approx(1.4)}
    assert (mesh.tensor, mesh.data, mesh.micro_batches, mesh.sequence) == (2, 4, 8, True)
    assert mesh.sharding.name == "distributed_optimizer" and one.software == "tuned"
    whole = Workload.named("llama-3-70b", 4096)
    block = (whole.num_parameters - one.workload.num_parameters) / 72
    assert one.workload.num_parameters == pytest.approx(whole.num_parameters - 72 * block) and block > 8e8


@each_row(
    ("metric", "value", "seconds"),
    [
        ("step_time_s", "2", 2.0),
        ("iteration_time_ms", "1,500", 1.5),
        ("samples_per_s", "16", 2.0),  # 32 samples a step
        ("tokens_per_s_per_device", "8192", 2.0),  # 32 x 4096 tokens of 8 devices
        ("tokens_per_s_total", "65536", 2.0),
        ("minutes_per_1000_iterations", "5 min", 2.4),  # an iteration is one of 8 micro batches
    ],
)
def test_units_of_time(metric: str, value: str, seconds: float) -> None:
    assert case("published", metric=metric, value=value, peer_prediction="").step_s == pytest.approx(seconds)


def test_flops_are_of_the_model_or_of_the_hardware() -> None:
    said = {"metric": "tflops_per_device", "value": "400", "peer_prediction": ""}
    model = case("published", **said, recompute="full")
    hardware = case("published", **said, recompute="full (hardware TFLOPs are published)")
    assert model.step_s == pytest.approx(32 * model.workload.flops_per_sample / (8 * 400e12))
    assert hardware.step_s == pytest.approx(model.step_s * 4 / 3)


def test_memory_joins_the_step_of_its_run(tmp_path: Path) -> None:
    time, memory = {"value": "1500"}, {"metric": "peak_allocated_GiB", "value": "40", "peer_prediction": "41"}
    alone = memory | {"global_batch": "64"}
    path = write(tmp_path / "rows.csv", "published", [time, memory, alone])
    rows = joined(read(path, columns("published")))
    assert [row.text("memory") for row in rows] == ["40", ""]
    done = validate("published", path)
    assert [point.case.step_s for point in done.points] == [1.5, 0.0]
    assert done.total["points"] == 1 and done.total["memory_points"] == 2 and done.total["coverage"] == 1.0
    assert done.total["memory_baselines"] == {"simulator": pytest.approx(0.025)}
    assert done.points[0].case.memory_bytes == 40 * 2**30
