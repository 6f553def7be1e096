"""Difference between a strategy and the best one, and why a strategy that the user named is not in the ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.strategy_text import POINTLESS, WORDS, Wanted, describe, saves_memory
from paceline.planning.search.choice import Choice
from paceline.planning.search.space import Space
from paceline.prediction import StepPredictor
from paceline.prediction.layouts.batch import Candidate
from paceline.prediction.step.memory import FRAGMENTED, fit_of, usable_bytes
from paceline.strategy.choices.choice_values import ByteSize
from paceline.strategy.choices.values import plain
from paceline.strategy.compression.compressions import COMPRESSIONS, DENSE
from paceline.strategy.exchanges.parameter_server import PARAMETER_SERVER
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import DDP
from paceline.units import format_bytes, format_gib, format_seconds
from paceline.workload.table import Workload


def difference(choice: Choice, best: Choice) -> str:
    """Return time and cost of a choice relative to the best, and the resources on which it spends more or less time."""
    parts = [_percent_text(choice.time_s / best.time_s, "slower", "faster")]
    if choice.usd == choice.usd and best.usd == best.usd and best.usd > 0:
        parts.append(_percent_text(choice.usd / best.usd, "more expensive", "cheaper"))
    lost = {k: choice.exposed.get(k, 0.0) - best.exposed.get(k, 0.0) for k in {**choice.exposed, **best.exposed}}
    worst = max(lost, key=lambda k: lost[k])
    gained = min(lost, key=lambda k: lost[k])
    if lost[worst] > 0.002 * best.time_s:
        parts.append(f"spends {format_seconds(lost[worst])} more on {worst}")
    if -lost[gained] > 0.002 * best.time_s:
        parts.append(f"saves {format_seconds(-lost[gained])} on {gained}")
    return ", ".join(filter(None, parts)) or "equal"


def _percent_text(ratio: float, more: str, less: str) -> str:
    if abs(ratio - 1) < 0.0005:
        return ""
    return f"{ratio - 1:.1%} {more}" if ratio > 1 else f"{1 - ratio:.1%} {less}"


def illegal(
    wanted: Wanted,
    best: Choice,
    workload: Workload,
    space: Space,
    barred: Mapping[str, str],
    predictor: StepPredictor,
    least: Sequence[tuple[Candidate, float]] = (),
) -> str:
    """Return why no candidate has these choices: they are illegal, do not fit, lose accuracy, or were not tried.

    Args:
        space: the values that were tried. ``barred``: by compression, why it does not compete.
        predictor: predictor of the best, so that both rates come from one model.
        least: layouts with these choices that lack least memory, and the missing bytes, if some were searched.
    """
    fields = {WORDS[k].name: v for k, v in wanted.items() if k in WORDS}
    if "servers" in fields:
        fields = {"exchange": PARAMETER_SERVER, **fields}
    if (COMPRESSIONS[str(fields.get("compression", DENSE))].compresses or "servers" in fields) and "sharding" not in fields:
        fields["sharding"] = DDP  # no sharded optimizer takes compressed gradients
    if "servers" not in fields and "exchange" in fields:
        fields["servers"] = 1
    cluster, clusters = best.cluster, space.clusters
    if Recompute.of(wanted.get("recompute", False)).whole_blocks and not saves_memory(workload):
        return f"{POINTLESS}."
    shown = {k: format_bytes(int(str(v))) if k == "bucket" else v for k, v in wanted.items()}
    title = ", ".join(f"{k} {v}" for k, v in shown.items())
    if least:
        layout, missing = min(least, key=lambda of: of[1])
        needed = missing + usable_bytes(layout[0].device)
        return f"{title} {fit_of(needed, layout[0].device)}: {lacking(needed, layout[0])} with {describe(*layout)}."
    if "tensor" in fields and "sequence" not in fields:
        fields["sequence"] = fields["tensor"] != 1  # the default of a search of layouts
    if "device" in wanted:
        given = {c.device.name: c for c in clusters}
        if wanted["device"] not in given:
            return f"{wanted['device']} is not among the plan's devices ({', '.join(given)})."
        size = cluster.world_size
        cluster = min((c for c in clusters if c.device.name == wanted["device"]), key=lambda c: abs(c.world_size - size))
    if "nodes" in wanted:
        if int(str(wanted["nodes"])) > (most := max(c.num_nodes for c in clusters)):
            return f"{wanted['nodes']} nodes are more than the plan's most, {most}."
        cluster = cluster.changed(num_nodes=int(str(wanted["nodes"])))
        fields["world_size"] = cluster.world_size
    if "workers" not in wanted:
        fields["world_size"] = cluster.world_size
    try:
        strategy = best.strategy.changed(**fields)
        p = predictor.step(workload, cluster, strategy)
    except UserError as error:
        return f"{title} is not legal: {str(error).rstrip('.?')}."
    if p.fit != "fits":
        return f"{title} {p.fit}: {lacking(p.memory_bytes, cluster)} with {describe(cluster, strategy)}."
    rate = p.samples_per_s / best.prediction.samples_per_s
    pace = f"it would train {rate:.2f} times as many samples a second as the best"
    if barred_for := barred.get(strategy.gradient_exchange.compression.name):
        return f"{title} is left out: {barred_for}. Over {strategy.gradient_exchange.exchange} {pace}."
    return f"{title} was not tried{_outside(wanted, space)}. With the other choices of the best {pace}."


def lacking(needed: float, cluster: Cluster) -> str:
    """Return the memory that a device lacks for ``needed`` bytes or for the headroom, in words."""
    missing = needed - cluster.device.memory.value
    if missing > 0:
        return f"{format_gib(missing)} are missing on each device"
    headroom = format_gib(needed - usable_bytes(cluster.device))
    return f"{headroom} of the headroom for fragments ({FRAGMENTED:.0%}) are missing on each device"


def _outside(wanted: Wanted, space: Space) -> str:
    """Return the wanted values that the plan does not try, in words."""
    missing = {}
    for word, value in wanted.items():
        tried = space.tried(WORDS[word]) if word in WORDS else ()
        if tried and plain(WORDS[word].values.check(value, word)) not in tried:
            missing[word] = map(format_bytes if isinstance(WORDS[word].values, ByteSize) else str, tried)
    return "".join(f"; of {word} the plan tries {', '.join(tried)}" for word, tried in missing.items())
