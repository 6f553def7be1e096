"""Choices before there is hardware: the best strategy for a goal, the gain of an upgrade, and reasons."""

from paceline.planning.ask.answer import Asked
from paceline.planning.ask.ask import ask
from paceline.planning.compare.asynchronous import AsyncPrediction, predict_asynchronous
from paceline.planning.compare.changes import Change, parse_change
from paceline.planning.compare.explain import Explained, explain
from paceline.planning.compare.whatif import WhatIf, whatif
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.goal import Goal, parse_goal
from paceline.planning.search.nearest_fit import Fitting, nearest_fit
from paceline.planning.search.plan import plan
from paceline.planning.search.space import Space
from paceline.planning.search.tally import Excluded
from paceline.planning.search.training_target import TrainingTarget

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
