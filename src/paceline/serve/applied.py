"""Selections that apply a proposal of the answer: another strategy, cluster or job, as the address states it."""

from __future__ import annotations

from urllib.parse import urlencode

from paceline.hardware import Cluster
from paceline.hardware.phrases.node_links import counted_text
from paceline.planning.search.nearest_fit import Fitting
from paceline.serve.controls import by_keyword, controls
from paceline.serve.question import Question
from paceline.serve.selection import Selection
from paceline.strategy import Strategy


def applied(asked: Question, cluster: Cluster, strategy: Strategy, lora: str = "", tokens: int = 0) -> Selection:
    """Return the selection with a proposal. Choices that the page has no control for follow from the others."""
    old = asked.strategy.settled(asked.workload, asked.cluster).to_json()
    new, known = strategy.to_json(), by_keyword()
    chosen = {option: text for option, text in asked.chosen.items() if option != "micro-batch-size"}
    for name, control in known.items():
        stated = control.option in chosen or name in ("global_batch_size", "precision")
        if name in new and (stated or new[name] != old.get(name)):
            chosen[control.option] = control.text(new[name])
        elif name not in new:  # JSON leaves the default out
            chosen.pop(control.option, None)
    chosen |= {"lora": lora} if lora else {}
    chosen |= {"seq-len": str(tokens)} if tokens else {}
    if cluster != asked.cluster:
        same = cluster.num_nodes > 1 and (cluster.device, cluster.network) == (asked.cluster.device, asked.cluster.network)
        chosen |= _machines(cluster)
        if not same:
            chosen = {option: text for option, text in chosen.items() if option not in ("network", "transport")}
            chosen |= {"network": counted_text(cluster.network)} if cluster.num_nodes > 1 else {}
    if cluster.device != asked.cluster.device:
        chosen.pop("price", None)
    return {control.option: chosen[control.option] for control in controls() if control.option in chosen}


def applied_fit(asked: Question, fit: Fitting) -> Selection:
    """Return the selection of what would fit."""
    return applied(asked, fit.cluster, fit.strategy, fit.lora, fit.tokens)


def address(chosen: Selection) -> str:
    """Return the address of a selection, relative to the page."""
    return f"./?{urlencode(chosen)}"


def _machines(cluster: Cluster) -> dict[str, str]:
    size = {"devices-per-node": str(cluster.devices_per_node), "nodes": str(cluster.num_nodes)}
    return {"device": cluster.device.name, **size}
