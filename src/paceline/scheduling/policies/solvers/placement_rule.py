"""Policies with another rule of placement, such as those of published simulators."""

from __future__ import annotations

from dataclasses import replace

from paceline.scheduling.placement import Rule
from paceline.scheduling.state import Decision, Policy, State


def placing(policy: Policy, rule: Rule) -> Policy:
    """Return the policy with this rule of placement."""

    def decide(state: State) -> Decision:
        return replace(policy(state), rule=rule)

    return decide
