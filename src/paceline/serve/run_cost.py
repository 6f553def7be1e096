"""Time and cost of the whole run: the one figure for a cluster that every part of the page shows."""

from __future__ import annotations

import math

import numpy as np

from paceline.planning.ask.ask import chance
from paceline.planning.search.choice import Choice
from paceline.planning.search.goal import Goal
from paceline.planning.search.ranking import table_of
from paceline.prediction import Prediction
from paceline.serve.question import Question

FASTEST = Goal("fastest")


def whole_run(asked: Question, step: Prediction) -> Choice:
    """Return the chosen strategy with the time and cost of the whole run, by the rule of ``plan`` and ``ask``."""
    prices = {asked.cluster.device.name: asked.price}
    candidate = asked.cluster, asked.strategy.settled(asked.workload, asked.cluster)
    table = table_of(asked.workload, asked.target, FASTEST, prices, [candidate], np.array([step.step_time_s]), asked.predictor)
    return table.choice(0)


def usd_per_hour(asked: Question) -> float:
    """Return dollars of the cluster for an hour; NaN without a price."""
    return asked.price.usd_per_hour(asked.cluster.node_sizes) if asked.price else math.nan


def chances(asked: Question, run: Choice) -> tuple[float | None, float | None]:
    """Return the probabilities of meeting the date and the budget; None without a limit or a price."""
    in_time = chance(asked.by_s, run.time_s, run.time_low_s, run.time_high_s)
    return in_time, chance(asked.budget_usd, run.usd, run.usd_low, run.usd_high)
