"""Choosing before there is hardware: the best strategy for a goal, what an upgrade gains, and why."""

from paceline.planning.ask import ask
from paceline.planning.asked import Asked
from paceline.planning.asynchronous import AsyncPrediction, predict_asynchronous
from paceline.planning.changes import Change, parse_change
from paceline.planning.choice import Choice, Plan
from paceline.planning.explain import Explained, explain
from paceline.planning.goal import Goal, parse_goal
from paceline.planning.nearest_fit import Fitting, nearest_fit
from paceline.planning.plan import plan
from paceline.planning.space import Space
from paceline.planning.tally import Excluded
from paceline.planning.training_target import TrainingTarget
from paceline.planning.whatif import WhatIf, whatif

__all__ = [
    "Asked",
    "AsyncPrediction",
    "Change",
    "Choice",
    "Excluded",
    "Explained",
    "Fitting",
    "Goal",
    "Plan",
    "Space",
    "TrainingTarget",
    "WhatIf",
    "ask",
    "explain",
    "nearest_fit",
    "parse_change",
    "parse_goal",
    "plan",
    "predict_asynchronous",
    "whatif",
]
