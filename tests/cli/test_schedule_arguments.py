"""Options of a simulated cluster become a scenario."""

from __future__ import annotations

import shlex

from paceline.cli import build_parser
from paceline.cli.arguments.schedule_arguments import scenario_of
from paceline.scheduling.fleet import Outage
from paceline.scheduling.simulate.scenario import Scenario
from schedule_toys import TRACE


def asked(options: str = "") -> Scenario:
    return scenario_of(build_parser().parse_args(shlex.split(f"schedule {TRACE} --cluster 2x4xT4 --policy las {options}")))


def test_defaults() -> None:
    question = asked()
    s = question.settings
    assert (s.round_s, s.restart_s, s.interference, s.checkpoint_s, question.knowledge) == (60, 30, 0, 600, "online")
    assert question.fleet.outages == () and len(question.jobs) == 12


def test_every_option_arrives() -> None:
    question = asked(
        "--no-ageing --round 0 --restart 90s --interference 0.25 --checkpoint 1h --knowledge measured --where owner=text"
    )
    s = question.settings
    assert (s.round_s, s.restart_s, s.interference, s.checkpoint_s, question.knowledge) == (0, 90, 0.25, 3600, "measured")
    assert {job.owner for job in question.jobs} == {"text"}
    away = asked("--outage 0:1h-2h --maintenance 1:0-3h").fleet.outages
    assert away == (Outage(0, 3600, 7200), Outage(1, 0, 10800, planned=True))
