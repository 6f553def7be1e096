"""Question of a selection: a workload, a cluster and a strategy. No name on the page opens a file or runs code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline import hardware, verbs
from paceline.errors import unknown
from paceline.hardware import Cluster
from paceline.prediction import ORDINARY, Predictor
from paceline.serve.configurations import Configurations
from paceline.serve.controls import UPLOADED, Selection, controls, value
from paceline.strategy import Strategy
from paceline.workload import Workload, names
from paceline.workload.catalogue import canonical


@dataclass(frozen=True)
class Question:
    """Question with its selection, workload, cluster, strategy and predictor."""

    chosen: Selection
    workload: Workload
    cluster: Cluster
    strategy: Strategy
    predictor: Predictor = ORDINARY


def question(chosen: Selection, configurations: Configurations) -> Question:
    """Return the question of a selection. Raises UserError for unknown or conflicting values."""
    workload = model(chosen, configurations)
    per_node, nodes = value(chosen, "devices-per-node"), value(chosen, "nodes") or 1
    cluster = hardware.cluster(chosen["device"], per_node, nodes, chosen.get("network"))
    choices: dict[str, Any] = {
        control.keyword: control.value(chosen[control.option])
        for control in controls()
        if control.keyword and control.option in chosen and control.option != "seq-len"
    }
    predictor = Predictor(framework=chosen["framework"]) if "framework" in chosen else ORDINARY
    return Question(chosen, workload, cluster, verbs.strategy_of(workload, cluster, choices, predictor), predictor)


def model(chosen: Selection, configurations: Configurations) -> Workload:
    """Return the model: one of the package by name, or an uploaded configuration. Raises UserError."""
    name, length = chosen["workload"], value(chosen, "seq-len")
    if name.startswith(UPLOADED):
        return configurations.workload(name, length)
    known = canonical(name)
    if known not in names():
        raise unknown("model", name, names(), "name one of the list, or drop its config.json on the page")
    return Workload.named(known, length)
