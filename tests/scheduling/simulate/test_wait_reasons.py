"""Why a job waited and why it got its devices, told by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.wait_reasons import why
from schedule_toys import FOUR, JOBS, job, simulated


def test_a_job_that_waited_for_another() -> None:
    answer = why(simulated(), "c")
    assert (answer.asked, answer.waited_s) == ("2 devices", 80)
    waited, ran = answer.stretches
    assert (waited.start_s, waited.end_s, waited.devices, ran.start_s, ran.end_s, ran.devices) == (20, 100, 0, 100, 200, 2)
    assert waited.why == (
        "Free were 0 of 4 T4; 1 job held devices.",
        "1 job waited too, since before it came.",
        "It started when a ended or gave devices back.",
    )
    assert ran.nodes == "n1 x2" and ran.why == ("Rigid: it gets the 2 that it asked for, or none.",)


def test_a_job_that_spans_nodes_and_one_that_was_scattered() -> None:
    (ran,) = why(simulated(), "a").stretches
    assert ran.nodes == "n0 x2, n1 x2" and ran.why[-1] == "A node holds fewer than 4, so it is on 2."
    scattered = simulated(job("w", 0, 1, 10), job("x", 0, 1, 50), job("y", 0, 1, 50), job("z", 11, 2, 50))
    (ran,) = why(scattered, "z").stretches
    assert ran.nodes == "n0 x1, n1 x1" and ran.why[-1] == "No single node had 2 free, so it is on 2."


def test_a_job_in_several_racks_says_why() -> None:
    fleet = Fleet.named("4x2xT4, 25Gb/s, leaf-nodes=2, oversubscription=2:1")
    answer = simulated(job("x", 0, 2, 50), job("y", 0, 4, 50), job("z", 1, 2, 50), job("all", 60, 8, 10), fleet=fleet)
    assert [why(answer, name).stretches[-1].nodes for name in "xyz"] == ["n0 x2", "n2 x2, n3 x2", "n1 x2"]
    assert why(answer, "all").stretches[-1].why[-1] == "It is in 2 racks (racks of 2 nodes, 2:1)."
    late = simulated(job("x", 0, 2, 50), job("y", 0, 3, 50), job("z", 1, 3, 50), fleet=fleet)
    assert why(late, "z").stretches[-1].nodes == "n1 x2, n3 x1"
    assert why(late, "z").stretches[-1].why[-1] == "No free nodes lay in 1 rack, so it is in 2 (racks of 2 nodes, 2:1)."


def test_a_job_that_came_between_rounds() -> None:
    waited, _ = why(simulated(job("x", 5, 1, 50), job("y", 10, 1, 50), settings=ClusterSettings(round_s=60)), "y").stretches
    assert waited.why[-1] == "Decisions are made every 60.0 s, and this was the next."


def test_an_outage_and_many_decisions() -> None:
    fleet = replace(FOUR, outages=(Outage(0, 1.0, 90.0),))
    answer = why(
        simulated(job("x", 2, 2, 50), job("y", 3, 2, 9), fleet=fleet, settings=ClusterSettings(round_s=10, restart_s=0)), "y"
    )
    assert answer.stretches[0].why[0] == "Free were 2 of 2 T4 (2 away); no job held devices."
    assert any("left it waiting at" in sentence for sentence in answer.stretches[0].why)


def test_the_reason_of_the_policy_comes_first() -> None:
    one = simulated()
    one.schedule.outcomes[0].spans[0].reason = "it has the least attained service"
    assert why(one, "a").stretches[0].why[0] == "It has the least attained service."


def test_elastic_jobs_say_what_an_equal_share_was() -> None:
    one = replace(simulated(), adapts=frozenset({"devices"}))
    one.schedule.outcomes[1].job = replace(JOBS[1], devices=3, max_devices=4, batch=64, adapts=frozenset({"devices", "batch"}))
    answer = why(one, "b")
    assert answer.asked == "3 devices, elastic from 1 to 4, batch 64, which may change"
    assert answer.stretches[1].why == ("The policy fifo gave 2, it had asked for 3; an equal share of all jobs was 2.",)
    assert "fifo changes no sizes" in why(replace(one, adapts=frozenset()), "b").stretches[1].why[0]


def test_a_job_that_never_ended() -> None:
    one = simulated()
    outcome = one.schedule.outcomes[2]
    outcome.end_s, outcome.spans = math.nan, []
    (waits,) = why(one, "c").stretches
    assert waits.why[-1] == "It never ended." and math.isnan(why(one, "c").waited_s)


def test_a_job_that_the_policy_removed() -> None:
    one = simulated()
    outcome = one.schedule.outcomes[2]
    outcome.end_s, outcome.spans, outcome.removed, outcome.removed_s = math.nan, [], "its deadline cannot be kept", 20.0
    (waits,) = [*why(one, "c").stretches]
    assert waits.why == ("fifo removed it 20.0 s after the trace's start: its deadline cannot be kept.",)


def test_a_job_that_was_removed_waits_no_more() -> None:
    one = simulated()
    outcome = one.schedule.outcomes[1]
    outcome.end_s, outcome.spans, outcome.removed, outcome.removed_s = math.nan, [], "its deadline cannot be kept", 15.0
    assert not any("waited too" in text for text in why(one, "c").stretches[0].why)


def test_an_unknown_job_is_named() -> None:
    with pytest.raises(UserError, match="unknown job 'd'; legal: a, b, c"):
        why(simulated(), "d")
    assert why(simulated(Job(name="one", duration_s=5, device_types=("T4",))), "one").asked == "1 device of T4"


def test_json() -> None:
    data = why(simulated(), "c").to_json()
    assert data["job"]["name"] == "c" and [s["devices"] for s in data["stretches"]] == [0, 2] and data["policy"] == "fifo"


def test_a_job_that_was_preempted_and_the_one_that_took_its_devices() -> None:
    answer = simulated(job("low", 0, 4, 50), replace(job("high", 10, 4, 20), priority=5), policy="priority")
    assert "low was preempted for it." in why(answer, "high").stretches[0].why
    waited = why(answer, "low").stretches[1]
    assert (waited.start_s, waited.end_s) == (10, 30) and "It was preempted for high." in waited.why
