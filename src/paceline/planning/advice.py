"""One sentence that somebody can act on who is no expert of distributed training."""

from __future__ import annotations

from paceline.calibration.uncertainty import LINKS
from paceline.planning.asked import Asked, Upgrade, cluster_text
from paceline.planning.goal import money
from paceline.strategy import Strategy
from paceline.units import format_seconds

SAFE = 0.9
"""A limit that is kept with this probability is kept."""
LIKELY = 0.5
"""One that is kept with less is missed."""
WAITS = 0.3
"""Share of the step from which on the wait for links is what to mend."""
_SHARDINGS = {
    "ddp": "DDP",
    "zero1": "DDP with a sharded optimizer (ZeRO-1)",
    "zero2": "FSDP that keeps weights whole (ZeRO-2)",
    "zero3": "FSDP with full sharding (ZeRO-3)",
}


def in_words(strategy: Strategy, replicas: int) -> str:
    """The strategy as PyTorch's users call it: ``FSDP with full sharding (ZeRO-3), recomputing, 4 samples a device``."""
    mesh = strategy.parallelism
    alone = strategy.world_size == 1
    sharding = "one device" if alone else _SHARDINGS.get(mesh.sharding, mesh.sharding)
    sizes = (("tensor", mesh.tensor), ("pipeline", mesh.pipeline), ("context", mesh.context), ("expert", mesh.expert))
    divided = [f"{name} parallel {size}" for name, size in sizes if size > 1]
    recomputing = [] if mesh.recompute == "none" else ["activation checkpointing"]
    steps = [f"{mesh.micro_batches} micro steps"] if mesh.micro_batches > 1 else []
    each = strategy.global_batch_size // (max(1, replicas) * mesh.micro_batches)
    of = "a device" if mesh.model_devices == 1 else "a replica"
    samples = f"{each:,} sample{'' if each == 1 else 's'} {of}{' and micro step' if steps else ''}"
    return ", ".join([sharding, *divided, *recomputing, *steps, samples])


def advice(asked: Asked) -> str:
    """What to do, in one sentence: what fits first, then the limits, then what is worth it."""
    if not asked.fits and asked.named is not None:
        return (
            f"{asked.workload} does not fit on {cluster_text(asked.named)}: take at least {cluster_text(asked.choice.cluster)}."
        )
    missed = [(name, chance) for name, chance in (("date", asked.in_time), ("budget", asked.in_budget)) if chance is not None]
    if any(chance < LIKELY for _, chance in missed):
        return _missed(asked, " and ".join(name for name, chance in missed if chance < LIKELY))
    how = in_words(asked.choice.strategy, asked.choice.strategy.parallelism.data)
    run = f"Run it with {how}"
    if any(chance < SAFE for _, chance in missed):
        name, least = min(missed, key=lambda limit: limit[1])
        return f"{run}; the {name} is likely but not safe ({least:.0%}), so leave room or take the next row."
    if (better := _better(asked)) is not None:
        return f"{_capital(better)}; else run it with {how}."
    waits = sum(asked.choice.prediction.exposed.get(link, 0.0) for link in LINKS) / asked.choice.prediction.step_time_s
    if waits > WAITS:
        links = "the links between devices" if asked.choice.cluster.num_nodes == 1 else "the network"
        return f"{run}; it waits {waits:.0%} of the time for {links}: try compression, paceline plan weighs it."
    return f"{run}; {_scaling(asked)}."


def _missed(asked: Asked, what: str) -> str:
    """What keeps the limits that the choice misses, the least dollars first."""
    able = [upgrade for upgrade in asked.upgrades if _keeps(asked, upgrade)]
    if able:
        best = min(able, key=lambda upgrade: (upgrade.usd != upgrade.usd, upgrade.usd))
        return f"This misses the {what}: {_named(best)} keeps it, {_price(best)}."
    if asked.by_s is not None and asked.choice.time_s > asked.by_s:
        times = asked.choice.time_s / asked.by_s
        return f"This misses the {what}: it needs a cluster {times:.1f} times as fast, or less training."
    return f"This misses the {what}, and nothing below keeps it: train less, or raise the {what}."


def _keeps(asked: Asked, upgrade: Upgrade) -> bool:
    """Whether an upgrade more likely than not keeps the user's limits; an unknown price keeps no budget."""
    in_time = asked.by_s is None or upgrade.choice.time_s <= asked.by_s
    return in_time and (asked.budget_usd is None or upgrade.usd <= asked.budget_usd)


def _better(asked: Asked) -> str | None:
    """An upgrade that is faster beyond its range and costs less; None without one."""
    cheaper = [upgrade for upgrade in asked.upgrades if upgrade.speedup_low > 1 and upgrade.usd < asked.choice.usd]
    if not cheaper:
        return None
    best = min(cheaper, key=lambda upgrade: upgrade.usd)
    saved = 1 - best.usd / asked.choice.usd
    return f"{_named(best)} is {best.speedup:.1f} times as fast for {saved:.0%} less money"


def _scaling(asked: Asked) -> str:
    """Whether more devices are worth it."""
    grown = next((u for u in asked.upgrades if u.change.startswith(("nodes", "devices-per-node"))), None)
    if grown is None:
        return "it waits little for links"
    share = grown.speedup / (grown.choice.cluster.world_size / asked.choice.cluster.world_size)
    less = "more devices pay less and less" if share >= 0.6 else "more devices do not pay"
    worth = "more devices pay" if share >= 0.85 else less
    low, high = grown.speedup_low, grown.speedup_high
    return f"{worth}: {cluster_text(grown.choice.cluster)} is {grown.speedup:.2g} times as fast ({low:.2g} to {high:.2g})"


def _named(upgrade: Upgrade) -> str:
    return cluster_text(upgrade.choice.cluster) if upgrade.change.startswith("device=") else upgrade.title


def _price(upgrade: Upgrade) -> str:
    cost = f"for {money(upgrade.usd)}" if upgrade.usd == upgrade.usd else "at a price that is not listed"
    return f"in {format_seconds(upgrade.choice.time_s)} {cost}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
