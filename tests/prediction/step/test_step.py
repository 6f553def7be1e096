"""All kinds of a step answer the same questions."""

from __future__ import annotations

import inspect

import pytest

from paceline.hardware.cluster import cluster
from paceline.prediction import ORDINARY
from paceline.prediction.mesh.mesh_step import MeshStep, mesh_step
from paceline.prediction.step.peer_step import PeerStep, any_worker_step
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_model import WholeStep
from paceline.prediction.step.worker_step import WorkerStep
from paceline.prediction.tasks.length_step import LengthStep
from paceline.prediction.tasks.task_step import TaskStep
from paceline.strategy import Strategy
from paceline.workload import Workload

NET, PLACE = Workload.named("gpt2"), cluster("A100", 4, 2, "100Gb/s")


def step(**mesh: float) -> Step:
    strategy = Strategy.of(world_size=8, global_batch_size=64, precision="bf16", **mesh).settled(NET, PLACE)
    model = ORDINARY.model(NET)
    return (any_worker_step if strategy.parallelism.whole else mesh_step)(model, PLACE, strategy)


@pytest.mark.parametrize(
    ("kind", "mesh"),
    [
        (WholeStep, {}),
        (MeshStep, {"tensor": 2, "pipeline": 2}),
        (WorkerStep, {"sync_every": 8, "worker_devices": 4}),
        (PeerStep, {"sync_every": 8, "worker_devices": 4, "round_deadline_s": 0.0, "max_age": 2}),
    ],
)
def test_the_parts_of_a_step_sum_to_it(kind: type[Step], mesh: dict[str, float]) -> None:
    found = step(**mesh)
    assert type(found) is kind and not inspect.isabstract(kind)
    assert sum(found.exposed.values()) == pytest.approx(found.seconds)
    assert 0 <= found.waited_s < found.seconds and found.wire_bytes == found.dense_wire_bytes > 0
    assert found.seconds_with_links(1.0, 1.0) == pytest.approx(found.seconds)
    assert found.seconds_with_links(10.0, 10.0) > found.seconds
    assert all(size >= 0 for size in found.memory().values())
    ends = [event.start_s + event.duration_s for event in found.events()]
    assert max(ends) == pytest.approx(found.seconds)
    assert len(found.stage_work_s) == mesh.get("pipeline", 0)


def test_a_step_is_one_of_its_kinds() -> None:
    assert inspect.isabstract(Step) and set(Step.__subclasses__()) == {WholeStep, MeshStep, WorkerStep, TaskStep, LengthStep}
