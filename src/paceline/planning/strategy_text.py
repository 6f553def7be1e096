"""Strategies in words: what one is, how it differs from another, and why one that was asked for is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.errors import UserError, unknown
from paceline.hardware import PRECISIONS, Cluster, device
from paceline.planning.space import Candidate, Tally
from paceline.prediction import Predictor
from paceline.prediction.exchange_plan import blocks
from paceline.strategy import BUCKET_BYTES, COMPRESSIONS, EXCHANGES, OPTIMIZERS, SHARDINGS, Strategy
from paceline.units import format_bytes, format_gib, format_seconds, parse_bytes
from paceline.workload.table import Workload

if TYPE_CHECKING:
    from paceline.planning.choice import Choice

Wanted = Mapping[str, object]
"""Choices by name: ``compression``, ``sharding``, ``nodes``, ``device`` and the rest of ``NAMES``."""

_FIELDS = {
    "precision": "precision",
    "compression": "compression",
    "exchange": "exchange",
    "servers": "servers",
    "sharding": "sharding",
    "recompute": "recompute",
    "global-batch": "global_batch_size",
    "accumulation": "grad_accum_steps",
    "bucket": "bucket_bytes",
    "optimizer": "optimizer",
    "workers": "world_size",
}
NAMES = (*_FIELDS, "device", "nodes")
ALIASES = {"grad-accum": "accumulation"}
"""Other words for the same choice: those of the options."""
LEGAL: Mapping[str, Iterable[str]] = {
    "precision": PRECISIONS,
    "compression": COMPRESSIONS,
    "exchange": EXCHANGES,
    "sharding": SHARDINGS,
    "optimizer": OPTIMIZERS,
}
"""Choices of one name among a few."""
POINTLESS = "recomputing saves this network no memory: it has no repeated blocks that are worth it"
EXAMPLES = {
    "nodes": "4",
    "workers": "8",
    "servers": "4",
    "global-batch": "1024",
    "accumulation": "2",
    "bucket": "25MiB",
    "recompute": "yes",
    "device": "A100",
    **{name: next(iter(legal)) for name, legal in LEGAL.items()},
}


def parse_wanted(text: str) -> dict[str, object]:
    """``compression=terngrad,sharding=zero3,nodes=4`` as choices. Raises UserError for an unknown one."""
    found: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        given, equals, value = (x.strip() for x in part.partition("="))
        name = ALIASES.get(given, given)
        if name not in NAMES:
            raise fixed(name) or unknown("choice", name, NAMES, "write it as compression=terngrad,sharding=zero3")
        if not equals or not value:
            raise UserError(f"choice {name} has no value", f"write it as {name}={EXAMPLES.get(name, 'VALUE')}")
        found[name] = choice_value(name, value)
    return found


def choice_value(name: str, text: str) -> object:
    """The value of one choice. Raises UserError where it is none."""
    if name in ("global-batch", "accumulation", "workers", "nodes", "servers"):
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number < 1:
            raise UserError(f"{name} {text!r} is not a whole number from 1 up", f"write it as {name}=8")
        return number
    if name == "recompute":
        return yes_or_no(name, text)
    if name in LEGAL:
        if text not in LEGAL[name]:
            raise unknown(name, text, LEGAL[name])
        return text
    if name == "bucket":
        return int(parse_bytes(text))
    return device(text).name


def yes_or_no(name: str, text: str) -> bool:
    """``yes`` or ``true``, ``no`` or ``false``. Raises UserError for anything else."""
    if text.lower() not in ("yes", "true", "no", "false"):
        raise unknown(name, text, ["yes", "no"])
    return text.lower() in ("yes", "true")


def fixed(name: str) -> UserError | None:
    """The error for what belongs to the network and is no choice; None for any other name."""
    if name not in ("seq-len", "workload"):
        return None
    return UserError(f"{name} makes another network, not another way to train this one", "run the command once for each")


def saves_memory(workload: Workload) -> bool:
    """Whether recomputing keeps less than it would otherwise: not without blocks that repeat."""
    return blocks(workload).kept_bytes < workload.activation_bytes


def matches(one: Candidate, wanted: Wanted) -> bool:
    """Whether a candidate has every choice that is wanted."""
    cluster, strategy = one
    here = {"device": cluster.device.name, "nodes": cluster.num_nodes}
    return all((here[k] if k in here else strategy.choice(_FIELDS[k])) == v for k, v in wanted.items())


def describe(cluster: Cluster, s: Strategy) -> str:
    """``4 x 8 A100 SXM 80GB, batch 2048, bf16, dense over allreduce``, and whatever is not usual."""
    many = f"{cluster.num_nodes} x {cluster.devices_per_node}" if cluster.num_nodes > 1 else f"{cluster.devices_per_node}"
    parts = [f"{many} {cluster.device.name}", f"batch {s.global_batch_size}", s.precision]
    if s.world_size > 1:
        x = s.gradient_exchange
        served = f"{x} of {x.servers}" if x.servers > 1 else str(x)
        parts.append(s.parallelism.sharding if s.parallelism.sharding != "ddp" else served)
    if s.parallelism.micro_batches > 1:
        parts.append(f"{s.parallelism.micro_batches} micro steps")
    if s.parallelism.recompute:
        parts.append("recomputing")
    if s.bucket_bytes != BUCKET_BYTES:
        parts.append(f"buckets of {format_bytes(s.bucket_bytes)}")
    return ", ".join(parts)


def difference(one: Choice, best: Choice) -> str:
    """How much longer and dearer it is than the best, and on which resource it loses most."""
    parts = [_more(one.time_s / best.time_s, "slower", "faster")]
    if one.usd == one.usd and best.usd == best.usd and best.usd > 0:
        parts.append(_more(one.usd / best.usd, "dearer", "cheaper"))
    lost = {k: one.exposed.get(k, 0.0) - best.exposed.get(k, 0.0) for k in {**one.exposed, **best.exposed}}
    worst = max(lost, key=lambda k: lost[k])
    gained = min(lost, key=lambda k: lost[k])
    if lost[worst] > 0.002 * best.time_s:
        parts.append(f"loses {format_seconds(lost[worst])} on {worst}")
    if -lost[gained] > 0.002 * best.time_s:
        parts.append(f"gains {format_seconds(-lost[gained])} on {gained}")
    return ", ".join(filter(None, parts)) or "as good"


def _more(ratio: float, more: str, less: str) -> str:
    if abs(ratio - 1) < 0.0005:
        return ""
    return f"{ratio - 1:.1%} {more}" if ratio > 1 else f"{1 - ratio:.1%} {less}"


def illegal(
    wanted: Wanted,
    best: Choice,
    workload: Workload,
    clusters: Sequence[Cluster],
    left_out: Tally,
    barred: Mapping[str, str],
    predictor: Predictor,
) -> str:
    """Why no candidate has these choices: the best with them is not legal, does not fit, was ``barred`` for its compression's
    accuracy (reason by compression), or was not asked to be tried. ``clusters``: those that were."""
    fields = {_FIELDS[k]: v for k, v in wanted.items() if k in _FIELDS}
    if "servers" in fields:
        fields = {"exchange": "parameter_server", **fields}
    if (fields.get("compression", "dense") != "dense" or "servers" in fields) and "sharding" not in fields:
        fields["sharding"] = "ddp"  # no sharded optimizer takes compressed gradients: another choice, not the one asked about
    if "servers" not in fields and "exchange" in fields:
        fields["servers"] = 1
    cluster = best.cluster
    if wanted.get("recompute") and not saves_memory(workload):
        return f"{POINTLESS}."
    title = ", ".join(f"{k} {v}" for k, v in wanted.items())
    if "device" in wanted:
        given = {c.device.name: c for c in clusters}
        if wanted["device"] not in given:
            return f"{wanted['device']} is not among --device ({', '.join(given)})."
        size = cluster.world_size
        cluster = min((c for c in clusters if c.device.name == wanted["device"]), key=lambda c: abs(c.world_size - size))
    if "nodes" in wanted:
        if int(str(wanted["nodes"])) > (most := max(c.num_nodes for c in clusters)):
            return f"{wanted['nodes']} nodes is above --max-nodes {most}."
        cluster = cluster.changed(num_nodes=int(str(wanted["nodes"])))
        fields["world_size"] = cluster.world_size
    if "workers" not in wanted:
        fields["world_size"] = cluster.world_size
    try:
        strategy = best.strategy.changed(**fields)
        p = predictor.step(workload, cluster, strategy)
    except UserError as error:
        return f"{title} does not exist: {str(error).rstrip('.?')}."
    if not p.fits:
        missing = format_gib(p.memory_bytes - cluster.device.memory.value)
        return f"{title} does not fit: {missing} are missing with {describe(cluster, strategy)}."
    if barred_for := barred.get(strategy.gradient_exchange.compression):
        rate = p.samples_per_s / best.prediction.samples_per_s
        pace = f"over {strategy.gradient_exchange.exchange} it would train {rate:.3g}x the best's samples a second"
        return f"{title} is left out: {pace}, but {barred_for}."
    tried = "; ".join(x.reason for x in left_out.excluded()[:2])
    return f"{title} is outside of what was tried ({tried})." if tried else f"{title} is outside of what was tried."
