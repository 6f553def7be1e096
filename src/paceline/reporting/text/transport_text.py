"""Sentences for a network without a named transport: the assumed one, and the result with the other."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.planning.compare.whatif import WhatIf
from paceline.record import Metrics
from paceline.reporting.text.screen import Screen
from paceline.reporting.values import number, seconds

NAMES = {"RDMA": "RDMA (RoCE, InfiniBand)", "TCP": "TCP"}
_TAKEN = "Only the speed of the network is given: TCP is taken."
_NAME = "Name one, as in '100Gb/s RoCE'."

NOTHING = 1.01
"""Steps whose ratio is below this are the same."""


def steps_text(steps: Mapping[str, Metrics]) -> str:
    """Describe the step over each transport; empty if the network names its transport."""
    if not steps:
        return ""
    return f"{_TAKEN} A step {_listed({name: seconds(step.step_time_s) for name, step in steps.items()})}. {_NAME}"


def transport_line(steps: Mapping[str, Metrics]) -> str:
    """Compare RDMA with TCP, which is assumed; empty if the network names its transport."""
    if not steps:
        return ""
    tcp, rdma = steps["TCP"].step_time_s, steps["RDMA"].step_time_s
    if tcp / rdma < NOTHING:
        return "TCP is taken; with RDMA (RoCE, InfiniBand) the step is the same."
    return f"TCP is taken; {NAMES['RDMA']} on the same link: {seconds(rdma)} a step, {tcp / rdma:.2f}x. {_NAME}"


def with_steps(screen: Screen, steps: Mapping[str, Metrics]) -> Screen:
    """Return an answer that begins with the step over each transport, if the network does not name its own."""
    return screen.led_by(steps_text(steps), brief_steps(steps))


def brief_steps(steps: Mapping[str, Metrics]) -> str:
    """Describe the step over each transport in one line; empty if the network names its transport."""
    other = "; ".join(f"over {name} {seconds(step.step_time_s)}" for name, step in steps.items())
    return f"a step {other}" if steps else ""


def gains_text(whatif: WhatIf) -> str:
    """Gain of each change over each transport; empty if the network names its transport."""
    if not whatif.by_transport:
        return ""
    gains = {
        name: ", ".join(f"{outcome.title} {number(outcome.speedup)}x" for outcome in other.outcomes[1:])
        for name, other in whatif.by_transport.items()
    }
    bases = {name: other.base.prediction for name, other in whatif.by_transport.items()}
    steps = {name: f"{seconds(base.step_time_s)} a step; {gains[name]}" for name, base in bases.items()}
    return f"{_TAKEN} As it is, {_listed(steps)}. {_NAME}"


def _listed(answers: Mapping[str, str]) -> str:
    return "; ".join(f"over {NAMES.get(name, name)}: {text}" for name, text in answers.items())
