"""Layouts that the model does not tell apart: the simplest is the best, and short runs that would decide are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Cluster, Workload
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.deciding_runs import MOST, STEPS, deciding_runs
from paceline.planning.search.ranking import MOST_UNRESOLVED
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=40, hidden=5120, heads=40, vocabulary=51200), 1024, name="gpt-40x5120")
CLUSTER = Cluster.named("1x8 A100", network="100Gb/s")


@pytest.fixture(scope="module")
def found() -> Plan:
    space = Space(
        clusters=(CLUSTER,),
        batches=(128,),
        tensors=(1, 2, 4),
        pipelines=(1, 2, 4),
        schedules=("1f1b", "zero_bubble"),
        compressions=("dense",),
        shardings=("ddp", "zero1"),
        precisions=("bf16",),
    )
    return plan(GPT, space, Goal("fastest"), TrainingTarget(total=1e6))


def test_the_simplest_of_the_unresolved_is_the_best(found: Plan) -> None:
    best, least = found.best, min(found.ranking, key=lambda choice: choice.time_s)
    tied = [choice for choice in found.ranking if choice.tied]
    assert best.time_s <= least.time_s * (1 + MOST_UNRESOLVED)
    assert best.strategy.simplicity == min(choice.strategy.simplicity for choice in tied)
    assert [choice.time_s for choice in tied[1:]] == sorted(choice.time_s for choice in tied[1:])


def test_runs_name_the_best_and_the_fastest_and_what_they_tell(found: Plan) -> None:
    tied = [choice for choice in found.ranking if choice.tied]
    assert len(tied) > 1, "no layouts to decide between: the test needs another network"
    runs = found.deciding
    assert runs[0].choice == found.best and 2 <= len(runs) <= MOST
    assert runs[1].choice.time_s == min(choice.time_s for choice in tied[1:])
    for run in runs[1:]:
        assert run.run_s == STEPS * run.choice.prediction.step_time_s
        ratio = run.choice.prediction.step_time_s / found.best.prediction.step_time_s
        assert "as fast" in run.tells if abs(ratio - 1) < 0.0005 else ("faster" in run.tells) == (ratio < 1)
    assert found.to_json()["deciding"][1]["tells"] == runs[1].tells


def test_a_best_without_a_tie_on_its_machines_and_batch_needs_no_run(found: Plan) -> None:
    best = found.best
    assert deciding_runs(best, []) == () == deciding_runs(best, [best])
    other = replace(best, strategy=best.strategy.changed(global_batch_size=128))
    assert deciding_runs(best, [other]) == ()


def test_all_runs_are_for_one_target_that_runs_the_best(found: Plan) -> None:
    best, tied = found.best, [choice for choice in found.ranking if choice.tied]

    def targets(choice: Choice) -> list[str]:
        return ["best alone", "both"] if choice is best else ["both", "last alone"] if choice is tied[-1] else ["last alone"]

    runs = deciding_runs(best, tied, targets)
    assert [run.choice for run in runs] == [best, tied[-1]] and {run.target for run in runs} == {"both"}
    assert deciding_runs(best, tied, lambda choice: ["best alone"] if choice is best else ["others"]) == ()
