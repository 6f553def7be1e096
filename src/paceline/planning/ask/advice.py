"""Advice in one sentence, for readers who are no experts in distributed training."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.calibration.uncertainty import LINKS
from paceline.hardware import Cluster
from paceline.hardware.prices import dollars_text
from paceline.planning.ask.answer import Asked, Upgrade, cluster_text
from paceline.planning.search.goal import money
from paceline.planning.search.nearest_fit import ADAPTERS, BITS, LOSS, NARROW, SHORTER, Fitting
from paceline.planning.search.ranking import TIE
from paceline.strategy import Strategy
from paceline.strategy.choices.choice import plain_values
from paceline.strategy.choices.synonyms import DEEPSPEED
from paceline.strategy.sharding import DDP, DISTRIBUTED, ZERO1, ZERO2, ZERO3
from paceline.strategy.strategy import CHOICES
from paceline.units import format_memory, format_seconds

SAFE = 0.9
"""Probability from which a limit counts as met."""
LIKELY = 0.5
"""Probability below which a limit counts as missed."""
LONG_S = 30 * 86400.0
"""Seconds from which a training run needs a deadline."""
WAITS = 0.3
"""Share of the step from which the wait for links is the first thing to improve."""
LITTLE = 0.1
"""Share of the step below which a job waits little for links."""
MUCH = 4.0
"""Least speedup for which other devices are named when the price of the answer is unknown."""
MOST_CHANGES = 2
"""Most changes of a job that the advice names; the answer lists all."""
_SHARDINGS = {
    DDP: "DDP",
    ZERO1: "DDP with a sharded optimizer (ZeRO-1)",
    ZERO2: "FSDP that keeps weights whole (ZeRO-2)",
    ZERO3: "FSDP with full sharding (ZeRO-3)",
    DISTRIBUTED: "DDP with a sharded optimizer (Megatron-Core's distributed_optimizer)",
}


_DEEPSPEED = {
    ZERO1: "DeepSpeed ZeRO stage 1",
    ZERO2: "DeepSpeed ZeRO stage 2",
    ZERO3: "DeepSpeed ZeRO stage 3",
}


def in_words(strategy: Strategy, replicas: int, tool: str = "") -> str:
    """Describe the strategy as PyTorch's users do: ``FSDP with full sharding (ZeRO-3), recomputing, 4 samples a device``.

    ``tool``: whose users, a key of ``synonyms.TOOLS``.
    """
    mesh = strategy.parallelism
    steps = [f"{mesh.micro_batches} micro steps"] if mesh.micro_batches > 1 else []
    each = strategy.global_batch_size // (max(1, replicas) * mesh.micro_batches)
    of = "a step" if strategy.world_size == 1 else "a device" if mesh.model_devices == 1 else "a replica"
    samples = f"{each:,} sample{'' if each == 1 else 's'} {of if not steps or strategy.world_size > 1 else 'a micro step'}"
    return ", ".join(
        [_method(strategy, tool), *steps, f"{samples} and micro step" if steps and strategy.world_size > 1 else samples]
    )


def _method(strategy: Strategy, tool: str) -> str:
    """Describe the strategy without its batch sizes."""
    mesh = strategy.parallelism
    names = {**_SHARDINGS, **(_DEEPSPEED if tool == DEEPSPEED else {})}
    sharding = "one device" if strategy.world_size == 1 else names.get(mesh.sharding, mesh.sharding.name)
    sizes = (("tensor", mesh.tensor), ("pipeline", mesh.pipeline), ("context", mesh.context), ("expert", mesh.expert))
    divided = [f"{name} parallel {size}" for name, size in sizes if size > 1]
    again = [] if not mesh.recompute else ["activation checkpointing"]
    kept = [] if not mesh.offload else [f"{mesh.offload} in the host's memory (offload)"]
    return ", ".join([sharding, *divided, *again, *kept])


def advice(asked: Asked) -> str:
    """Return the advice: the part that fits, then the limits, then worthwhile changes."""
    choice = asked.choice
    run = f"Run it {'on' if choice.strategy.world_size == 1 else 'with'} {_method(choice.strategy, asked.tool)}"
    if not asked.fits and asked.named is not None:
        return f"{asked.workload} does not fit on {cluster_text(asked.named)}: {holding(asked, asked.named)}."
    missed = [(name, chance) for name, chance in (("date", asked.in_time), ("budget", asked.in_budget)) if chance is not None]
    if any(chance < LIKELY for _, chance in missed):
        return _missed(asked, [name for name, chance in missed if chance < LIKELY])
    if any(chance < SAFE for _, chance in missed):
        name, least = min(missed, key=lambda limit: limit[1])
        return f"{run}; the {name} is likely but not safe ({least:.0%}), so leave room{_safer(asked)}."
    if asked.lighter:
        return f"{_capital(' or '.join(map(_change, asked.lighter[:MOST_CHANGES])))}; else {run[:1].lower()}{run[1:]}."
    if asked.named is None and not missed and choice.time_s > LONG_S:
        long = format_seconds(choice.time_s)
        return f"This is the cheapest, and takes {long}: say by when you need it (--by 30d), and a faster one is chosen."
    if (better := _better_upgrade(asked)) is not None:
        return f"{_capital(better)}; else {run[:1].lower()}{run[1:]}."
    if (layout := asked.divided_layout) is not None:
        words = _method(layout.choice.strategy, asked.tool)
        return f"{run}; {words} is {layout.speedup:.1f} times as fast, for Megatron-LM or the like: plan weighs more of them."
    if (waits := _waits(asked)) > WAITS:
        what = "layouts that divide the network and compression" if asked.may_divide else "compression"
        return f"{run}; it waits {waits:.0%} of the time for {_links(asked)}: paceline plan tries {what}."
    if choice.strategy.parallelism.offload and (host := _share(asked, "host")) > WAITS:
        return f"{run}; it waits {host:.0%} of the time for the host: offload less, or take an optimizer of 8 bits."
    return f"{run}; {_scaling(asked)}."


def _share(asked: Asked, resource: str) -> float:
    """Return the share of the step that waits for one resource."""
    prediction = asked.choice.prediction
    return prediction.exposed.get(resource, 0.0) / prediction.step_time_s


def _waits(asked: Asked) -> float:
    """Return the share of the step that waits for links of any kind."""
    return sum(_share(asked, link) for link in LINKS)


def _links(asked: Asked) -> str:
    return "the links between devices" if asked.choice.cluster.num_nodes == 1 else "the network"


def holding(asked: Asked, named: Cluster) -> str:
    """Name devices to rent or changes to make if the network does not fit."""
    choice = asked.choice
    own = f"{' or '.join(map(_change, asked.lighter[:MOST_CHANGES]))}; else " if asked.lighter else ""
    if asked.otherwise is not None:
        how = _method(asked.otherwise.strategy, asked.tool)
        own = f"leave {' and '.join(asked.dropped)} out and run it with {how}; else {own}"
    if choice.cluster.device == named.device or asked.divided or not asked.listing or not asked.listing.seller:
        return f"{own}take at least {cluster_text(choice.cluster)}"
    where = f"at {asked.listing.seller} for {money(choice.usd)}"
    return f"{own}take {cluster_text(choice.cluster)} {where}, the cheapest listed of what holds it"


_CHANGES = {
    BITS: "hold the frozen weights in 4 bits",
    LOSS: "compute the loss in parts",
    "offload": "offload state to the host",
    SHORTER: "shorten the sequences",
    ADAPTERS: "train adapters alone",
    NARROW: "store weights in bf16 with paged 8-bit state and update them in the backward pass",
}


def _change(fit: Fitting) -> str:
    """Name the changes of a lighter job, with its options and memory."""
    words = " and ".join(_CHANGES[kind] for kind in fit.kinds)
    return f"{words} ({lighter_words(fit)}: {format_memory(fit.prediction.memory_bytes)} a device)"


def lighter_words(fit: Fitting) -> str:
    """Return the options of a lighter job: ``--lora r=16,bits=4 --offload weights+optimizer``."""
    offload = fit.strategy.parallelism.offload
    update = {"optimizer": fit.strategy.optimizer, **plain_values(fit.strategy.weight_update)} if NARROW in fit.kinds else {}
    named = [f"--{CHOICES[name].option} {value}" for name, value in update.items()]
    loss = ["--loss chunked"] if LOSS in fit.kinds else []
    return " ".join([*fit.job, *loss, *([f"--offload {offload.name}"] if offload else []), *named])


def _missed(asked: Asked, limits: Sequence[str]) -> str:
    """Name changes that meet the missed limits, the cheapest first."""
    what = " and the ".join(limits)
    able = [upgrade for upgrade in asked.upgrades if _keeps(asked, upgrade)]
    if able:
        best = min(able, key=lambda upgrade: (upgrade.usd != upgrade.usd, upgrade.usd))
        return f"This misses the {what}: {_named(best)} {'keep' if _is_plural(best) else 'keeps'} it, {_price(best)}."
    others = ", and so does every row above" if asked.upgrades else ""
    needs = []
    if "date" in limits and asked.by_s:
        keeping = asked.keeping
        if keeping is not None:
            needs.append(f"{keeping.title} {'keep' if _is_plural(keeping) else 'keeps'} the date, {_price(keeping)}")
        else:
            times = _rounded(asked.choice.time_s / asked.by_s)
            needs.append(f"a cluster {times} times as fast keeps the date, and none that is listed is")
    if "budget" in limits:
        needs.append(f"{money(asked.choice.usd)} is the budget that this takes")
    return f"This misses the {what}{others}: {' and '.join(needs)}; or train less."


def _safer(asked: Asked) -> str:
    """Name the cheapest upgrade that safely meets all limits; empty without one."""
    able = [
        upgrade
        for upgrade in asked.upgrades
        if _keeps(asked, upgrade) and (asked.by_s is None or upgrade.choice.time_high_s <= asked.by_s)
    ]
    if not able or asked.budget_usd is not None:
        return ""
    best = min(able, key=lambda upgrade: (upgrade.usd != upgrade.usd, upgrade.usd))
    return f" or take {_named(best)}, {_price(best)}"


def _keeps(asked: Asked, upgrade: Upgrade) -> bool:
    """Return whether an upgrade probably meets the user's limits. An unknown price meets no budget."""
    in_time = asked.by_s is None or upgrade.choice.time_s <= asked.by_s
    return in_time and (asked.budget_usd is None or upgrade.usd <= asked.budget_usd)


def _better_upgrade(asked: Asked) -> str | None:
    """Describe an upgrade that is both faster and cheaper, or a cheaper provider of the same cluster.

    The gains exceed the prediction's range and the size of a tie. None without either.
    """
    now, cluster = asked.choice.usd, cluster_text(asked.choice.cluster)
    if now != now:
        return _much_faster(asked)
    least = 1 - TIE
    cheaper = [x for x in asked.upgrades if x.speedup_low > 1 and x.usd < least * now and not x.usd >= least * x.usd_there]
    same = next((upgrade for upgrade in asked.upgrades if not upgrade.change), None)
    several = asked.choice.cluster.world_size > 1
    elsewhere = ""
    if same:
        verb = "cost" if several else "costs"
        elsewhere = f"the same {cluster} {verb} {money(same.usd)} at {same.seller}, not {money(now)}"
    if not cheaper:
        return elsewhere or None
    best = min(cheaper, key=lambda upgrade: upgrade.usd)
    whose = f" at {best.seller}" if best.seller else ""
    return f"{_faster(best)} for {1 - best.usd / now:.0%} less money{whose}{elsewhere and '; ' + elsewhere}"


def _much_faster(asked: Asked) -> str | None:
    """Describe the cheapest of much faster devices if the price of the answer's own cluster is unknown.

    The text gives the price an hour below which the answer is cheaper.
    """
    much = [x for x in asked.upgrades if x.change.startswith("device=") and x.speedup_low > MUCH and x.usd == x.usd]
    if not much:
        return None
    best = min(much, key=lambda upgrade: upgrade.usd)
    cluster = asked.choice.cluster
    even = float(f"{best.usd / (asked.choice.time_s / 3600 * cluster.world_size):.2g}")
    own = f"{cluster.device.name} costs less than {dollars_text(even)} a device and hour"
    return f"{_faster(best)} for {money(best.usd)}{f' at {best.seller}' if best.seller else ''}, which is less unless {own}"


def _faster(upgrade: Upgrade) -> str:
    times = f"{upgrade.speedup:.1f}" if upgrade.speedup < 10 else f"{upgrade.speedup:.0f}"
    return f"{_named(upgrade)} {'are' if _is_plural(upgrade) else 'is'} {times} times as fast"


def _scaling(asked: Asked) -> str:
    """Describe whether more devices are worth their price."""
    grown = next((u for u in asked.upgrades if u.change.startswith(("nodes", "devices-per-node"))), None)
    if grown is None:
        waits = _waits(asked)
        return "it waits little for links" if waits < LITTLE else f"it waits {waits:.0%} of the time for {_links(asked)}"
    share = grown.speedup / (grown.choice.cluster.world_size / asked.choice.cluster.world_size)
    less = "more devices pay less and less" if share >= 0.6 else "more devices do not pay"
    worth = "more devices pay" if share >= 0.85 else less
    low, high = grown.speedup_low, grown.speedup_high
    return f"{worth}: {cluster_text(grown.choice.cluster)} are {grown.speedup:.2g} times as fast ({low:.2g} to {high:.2g})"


def _named(upgrade: Upgrade) -> str:
    if not upgrade.change:
        return f"the same {cluster_text(upgrade.choice.cluster)}"
    if upgrade.change.startswith("network"):
        return f"a {upgrade.title}"
    return cluster_text(upgrade.choice.cluster) if upgrade.change.startswith("device=") else upgrade.title


def _is_plural(upgrade: Upgrade) -> bool:
    """Return whether the upgrade's name is plural."""
    return not upgrade.change.startswith("network") and upgrade.choice.cluster.world_size > 1


def _rounded(times: float) -> str:
    """Round to two digits."""
    return f"{times:.1f}" if times < 10 else f"{float(f'{times:.2g}'):,.0f}"


def _price(upgrade: Upgrade) -> str:
    cost = f"for {money(upgrade.usd)}" if upgrade.usd == upgrade.usd else "at a price that is not listed"
    return f"in {format_seconds(upgrade.choice.time_s)} {cost}{f' at {upgrade.seller}' if upgrade.seller else ''}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
