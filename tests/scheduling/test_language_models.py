"""A trace of language models end to end: what fits no device is divided, and a free strategy is no slower than a fixed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from paceline.scheduling.simulate.saved import from_json, to_json
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.simulate.wait_reasons import why
from paceline.scheduling.verb import scenario
from schedule_toys import ROOT
from scheduling_toys import audit

DATA_PARALLEL = {"llama-2-7b": "zero3+recompute=full", "gpt2-xl": "zero1", "bert-large": "ddp", "resnet-50": "ddp"}
"""What each network needs of data parallelism so that its state fits."""


@pytest.fixture(scope="module")
def free() -> Scenario:
    return scenario(ROOT / "examples" / "language_models.csv", "2x8xA100 40GB, 100Gb/s")


@pytest.fixture(scope="module")
def simulated(free: Scenario) -> Mapping[str, SimulatedSchedule]:
    fixed = tuple(replace(job, adapts=job.adapts - {"strategy"}, strategy=DATA_PARALLEL[job.model]) for job in free.jobs)
    one = {policy: free.run(policy) for policy in ("rubick", "paceline")}
    return {**one, **{f"{policy}, data parallel": replace(free, jobs=fixed).run(policy) for policy in ("rubick", "paceline")}}


@pytest.mark.long
def test_a_free_strategy_is_no_slower_than_data_parallelism(simulated: Mapping[str, SimulatedSchedule]) -> None:
    for policy in ("rubick", "paceline"):
        ours, fixed = simulated[policy], simulated[f"{policy}, data parallel"]
        audit(ours.schedule, [outcome.job for outcome in ours.schedule.outcomes])
        assert ours.metrics.ended == fixed.metrics.ended == 8
        assert ours.metrics.mean_jct_s <= fixed.metrics.mean_jct_s and ours.metrics.makespan_s <= fixed.metrics.makespan_s


def test_what_fits_no_device_is_divided_and_never_runs_where_it_does_not_fit(
    simulated: Mapping[str, SimulatedSchedule],
) -> None:
    for one in simulated.values():
        for outcome in one.schedule.outcomes:
            for span in outcome.spans:
                assert span.strategy and span.end_s > span.start_s
                if outcome.job.model == "llama-2-7b":
                    assert sum(n for _, n in span.placement) >= 4 and span.strategy.startswith(("zero", "tensor"))
    ran = {span.strategy for outcome in simulated["rubick"].schedule.outcomes for span in outcome.spans}
    assert any("tensor" in text and "pipeline" in text for text in ran)


def test_why_and_the_saved_run_name_the_strategy_and_its_change(simulated: Mapping[str, SimulatedSchedule]) -> None:
    answer = why(simulated["rubick"], "chat")
    first, second, *_ = answer.stretches
    assert first.what == "on 8 A100 SXM 40GB (n1 x8) as zero3, tensor 2 with sequence, 4 micro steps"
    assert f"Its strategy changed: it ran as {first.strategy} before." in second.why
    assert answer.to_json()["stretches"][0]["strategy"] == first.strategy
    assert answer.asked.endswith("batch 32, strategy of the predictor's choice")
    again = from_json(to_json({"rubick": simulated["rubick"]}))["rubick"]
    assert again.schedule.outcomes[1].spans == simulated["rubick"].schedule.outcomes[1].spans
    row = simulated["rubick"].rows()[1]
    assert str(row["strategy"]).startswith(f"{first.strategy}, then {second.strategy}")


def test_a_policy_without_strategies_keeps_the_best_of_the_devices_asked_for(free: Scenario) -> None:
    alone = replace(free, jobs=tuple(job for job in free.jobs if job.name == "chat"))
    of_policy = {}
    for policy in ("optimus", "rubick"):
        (outcome,) = alone.run(policy).schedule.outcomes
        of_policy[policy] = {span.strategy for span in outcome.spans}
    assert of_policy["optimus"] == {"zero3, tensor 2 with sequence, 4 micro steps"}  # 16 devices are slower with it
    assert of_policy["rubick"] == {"zero1, tensor 2 with sequence, pipeline 2, 8 micro steps"}
