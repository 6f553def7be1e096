"""What is true of a job is chosen by what is known of it; what nobody knows is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline import predict
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.wrappers.early_stop import EarlyStop
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.speeds.predicted_jobs import Predictions
from paceline.scheduling.speeds.profiles import read_profiles
from paceline.scheduling.state import Decision, State
from schedule_toys import AT_ONCE, FOUR, JOBS
from scheduling_toys import FREE, SMALL, profile, write_profiles


def scenario(*jobs: Job, **given: object) -> Scenario:
    return Scenario(**{"jobs": jobs or JOBS, "fleet": FOUR, "settings": AT_ONCE, **given})  # type: ignore[arg-type]


def refused(question: Scenario, policy: str = "fifo") -> str:
    with pytest.raises(UserError) as error:
        question.run(policy)
    return str(error.value)


def test_a_job_of_which_nothing_is_known_is_refused() -> None:
    assert "job 'a': no profile of 'gpt9', and no duration" in refused(scenario(Job(name="a", model="gpt9", steps=5)))
    assert "job 'a': neither a model nor a duration" in refused(scenario(Job(name="a", samples=5)))


def test_a_job_without_a_profile_is_rigid_and_that_is_said() -> None:
    elastic = Job(name="a", arrival_s=1, model="bert", devices=2, duration_s=10, adapts=frozenset({"devices"}))
    answer = scenario(elastic, settings=ClusterSettings(round_s=10)).run("goodput")
    (outcome,) = answer.schedule.outcomes
    assert outcome.job.adapts == frozenset() and {sum(n for _, n in s.placement) for s in outcome.spans} == {2}
    assert "1 of 1 jobs run for their duration on the devices they ask for; without a profile none adapts." in answer.notes


def test_a_network_with_its_work_stated_runs_as_predicted() -> None:
    one_node = Fleet((NodeGroup.of("T4", 1, 4),))
    work = Job(name="a", model="lenet5", batch=64, steps=1e5)
    jobs = (work, replace(work, name="b", steps=2e5), Job(name="c", duration_s=3))
    answer = Scenario(jobs=jobs, fleet=one_node, settings=AT_ONCE, predictions=Predictions(one_node)).run("fifo")
    once, twice, stated = (outcome.jct_s for outcome in answer.schedule.outcomes)
    assert twice == pytest.approx(2 * once) and stated == 3
    step = predict("lenet5", "1 T4", global_batch_size=64, precision="fp16")
    assert 1e5 * step.low_s / 3 < once < 1e5 * step.high_s * 3
    assert "2 of 3 jobs run as predicted." in answer.notes


def test_a_strategy_is_carried_out_or_refused(tmp_path: Path) -> None:
    one_node = Fleet((NodeGroup.of("T4", 1, 4),))
    stated = Job(name="a", model="lenet5", batch=64, steps=1e5, devices=2, strategy="zero3")
    jobs = (stated, replace(stated, name="b", strategy=""), Job(name="c", duration_s=3, strategy="tensor=2"))
    answer = Scenario(jobs=jobs, fleet=one_node, settings=AT_ONCE, predictions=Predictions(one_node)).run("fifo")
    assert [outcome.spans[0].strategy for outcome in answer.schedule.outcomes] == ["zero3", "ddp", "tensor=2"]
    assert any(note.startswith("1 of 3 jobs run as predicted with the strategy") for note in answer.notes)
    measured = {"toy": profile(tmp_path)}
    for given in ({"strategy": "zero3"}, {"adapts": frozenset({"strategy"})}):
        job = Job(name="a", model="toy", target="as measured", **given)  # type: ignore[arg-type]
        assert "its profile was measured with one strategy" in refused(scenario(job, profiles=measured))


def test_what_a_type_does_not_hold_never_runs_there() -> None:
    fleet = Fleet.named("1x2xK80 + 1x2xA100 80GB")
    large = Job(name="a", model="gpt2-large", batch=8, steps=10, devices=1)
    jobs = (large, replace(large, name="b", strategy="zero1"), replace(large, name="c", adapts=frozenset({"strategy"})))
    for policy in ("las", "rubick"):
        answer = Scenario(jobs=jobs, fleet=fleet, settings=AT_ONCE, predictions=Predictions(fleet)).run(policy)
        assert {span.device for o in answer.schedule.outcomes for span in o.spans} == {"A100 SXM 80GB"}
        assert answer.metrics.ended == 3


def test_choices_that_nothing_executes_are_refused() -> None:
    with pytest.raises(UserError, match="unknown knowledge"):
        scenario(knowledge="guessed")
    with pytest.raises(UserError, match="these jobs cannot be predicted"):
        scenario(knowledge="predicted")
    alone = scenario(knowledge="predicted", predictions=Predictions(FOUR))
    assert "jobs that state only a duration cannot be predicted" in refused(alone)
    with pytest.raises(UserError, match="no jobs"):
        Scenario(jobs=(), fleet=FOUR)
    assert "unknown policy 'fido'" in refused(scenario(), "fido")
    assert "shares out devices of one type only; on several types use fifo" in refused(
        scenario(fleet=Fleet.named("1x4xT4 + 1x4xK80")), "goodput"
    )


def test_a_function_is_a_policy() -> None:
    def all_at_once(state: State) -> Decision:
        return Decision(devices=state.requested, type_index=0 * state.requested)

    answer = scenario(replace(JOBS[1], arrival_s=0), replace(JOBS[2], arrival_s=0)).run(all_at_once)
    assert answer.policy == "all_at_once" and [o.jct_s for o in answer.schedule.outcomes] == [50, 100]


def test_progress_is_told() -> None:
    steps: list[tuple[float, int]] = []
    scenario().run("fifo", lambda moment, ended: steps.append((moment, ended)))
    assert steps[0] == (0.0, 0) and [ended for _, ended in steps] == sorted(ended for _, ended in steps)


def test_jobs_that_no_longer_learn_are_ended_where_their_profiles_say_how_they_learn(tmp_path: Path) -> None:
    """The metric of the toy rises by 0.1 an epoch: two of them add 60 % of what four had added."""
    profiles = read_profiles(write_profiles(tmp_path, epochs=12))
    jobs = (
        Job(name="a", model="toy", devices=2, batch=64, target="its end"),
        Job(name="b", model="toy", devices=8, batch=64, target="its end"),
    )
    question = Scenario(jobs=jobs, fleet=SMALL, profiles=profiles, settings=FREE, stop_early=EarlyStop(2, 0.6))
    simulated = question.run("fifo")
    first, second = simulated.schedule.outcomes
    assert first.removed == "it no longer learned: its last 2 reports added less than 60 % of its earlier progress"
    assert first.removed_s == second.start_s and second.removed and simulated.metrics.removed == 2
    assert "A job is ended when its last 2 reports added less than 60 % of its earlier progress." in simulated.notes
    mixed = replace(question, jobs=(*jobs, Job(name="c", duration_s=60.0)))
    assert refused(mixed) == (
        "1 of 3 jobs run for their duration, and nothing says how they learn; "
        "leave `stop_early` out, or choose jobs of `profiles` that were measured"
    )


def test_fairness_is_estimated_or_found_from_each_job_alone(tmp_path: Path) -> None:
    """Two equal rigid jobs follow one another; the share of the second is all devices over 1.5 jobs, and it asked for all."""
    jobs = (Job(name="a", devices=8, duration_s=100.0), Job(name="b", devices=8, duration_s=100.0))
    question = Scenario(jobs=jobs, fleet=SMALL, settings=ClusterSettings(round_s=10.0, restart_s=0.0))
    estimate, alone = question.run("fifo"), replace(question, fairness="alone").run("fifo")
    assert estimate.ratios is None and alone.ratios == {"a": pytest.approx(100 / 200), "b": pytest.approx(200 / 150)}
    assert alone.metrics.worst_fairness == pytest.approx(200 / 150) and alone.metrics.unfair_share == 0.5
    assert estimate.metrics.mean_jct_s == alone.metrics.mean_jct_s and alone.to_json()["fairness"] == "alone"
    profiles = read_profiles(write_profiles(tmp_path))
    one = Scenario(
        jobs=(Job(name="a", model="toy", batch=32, target="its end"),),
        fleet=SMALL,
        profiles=profiles,
        settings=FREE,
        fairness="alone",
    )
    assert one.run("fifo").ratios == {"a": 1.0}, "alone it takes as long"


def test_a_policy_that_needs_lengths_takes_stated_durations() -> None:
    long, short = Job(name="long", devices=4, duration_s=100), Job(name="short", devices=4, duration_s=10, arrival_s=1)
    answer = scenario(long, short).run("srtf")
    assert [outcome.jct_s for outcome in answer.schedule.outcomes] == [110, 10]
    assert "srtf needs lengths: it takes the durations that 2 jobs state as known." in answer.notes
    assert not any("needs lengths" in note for note in scenario(long, short).run("las").notes)
