"""Gain of local steps between nodes, where a step waits long for the network between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.site_map import EVERY
from paceline.planning.compare.site_methods import SITE_METHODS
from paceline.prediction import Prediction, StepPredictor
from paceline.prediction.learning.local_loss import finding_of, further_of
from paceline.strategy import Parallelism, Strategy
from paceline.strategy.recompute import FULL_RECOMPUTE
from paceline.strategy.sharding import DDP, ZERO3
from paceline.units import format_seconds
from paceline.workload.table import Workload

WAITS = 0.25
"""Least share of a step that waits for the network between nodes, from which local steps are tried."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Micro steps that are tried if a divided network is replaced by shards in each node."""
WORTH = 1.05
"""Least speedup that is named."""


def local_gain(workload: Workload, cluster: Cluster, strategy: Strategy, predictor: StepPredictor, now: Prediction) -> str:
    """Describe the speedup of local steps, each node a worker; empty without one, and where they cannot run.

    The fastest is named for equal samples. The speedup to an equal loss, with the range of further tokens of published laws, is
    that of a method for which a law holds.
    """
    nodes = cluster.num_nodes
    if nodes == 1 or now.exposed_comm_s < WAITS * now.step_time_s or not cluster.even or strategy.sync_every > 1:
        return ""
    fitting: dict[str, tuple[Strategy, Prediction]] = {}
    for site in _of_one_node(strategy, cluster):
        if not fitting:
            fitting = _fitting(workload, cluster, site, predictor)
    if not fitting:
        return ""
    name = min(fitting, key=lambda method: fitting[method][1].step_time_s)
    strategy_of_fastest, fastest = fitting[name]
    if now.step_time_s < WORTH * fastest.step_time_s:
        return ""
    taken = f"{format_seconds(fastest.step_time_s)} a step instead of {format_seconds(now.step_time_s)}"
    how = f"local steps ({name}, an exchange every {EVERY} steps, each node a worker): {taken}"
    gains = [gain for method in fitting if (gain := _to_equal_loss(workload, method, *fitting[method], now))]
    if further_of(workload, strategy_of_fastest) is None:
        finding = finding_of(workload, strategy_of_fastest)
        published = f", {finding.brief}" if finding else ""
        gains = [f"how many more samples they need is unknown{published}", *gains]
    elif not gains:
        return ""
    return f"{'; '.join((how, *gains))} (paceline whatif --sites)"


def _to_equal_loss(workload: Workload, name: str, strategy: Strategy, step: Prediction, now: Prediction) -> str:
    """Describe the speedup of a method to an equal loss; empty without a law, and without a gain by it."""
    known = further_of(workload, strategy)
    ratio = now.step_time_s / step.step_time_s
    if known is None or ratio / known.high < WORTH:
        return ""
    least, most = ratio / known.high, ratio / known.low
    times = f"{least:.3g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.3g} to {most:.3g}"
    return f"{name}: {times} times as fast to an equal loss by published laws"


def _fitting(
    workload: Workload, cluster: Cluster, site: Strategy, predictor: StepPredictor
) -> dict[str, tuple[Strategy, Prediction]]:
    """Return the local steps that fit, by method, each with its strategy. ``site``: the strategy of one node alone."""
    found: dict[str, tuple[Strategy, Prediction]] = {}
    for method in SITE_METHODS:
        if not method.local or method.choices.get("optimizer", site.optimizer) != site.optimizer:
            continue
        with suppress(UserError):
            together = method.on_sites(site, cluster.num_nodes, EVERY)
            step = predictor.step(workload, cluster, together)
            if step.fit == "fits":
                found[method.name] = together, step
    return found


def _of_one_node(strategy: Strategy, cluster: Cluster) -> Iterator[Strategy]:
    """Yield strategies of one node alone, with its share of the batch and dense gradients.

    The first is that of all nodes, if each device holds the whole network. The others shard everything and recompute it, in
    more and more micro steps. One device has none to share its state with, so it shards nothing.
    """
    devices, batch = cluster.devices_per_node, strategy.global_batch_size // cluster.num_nodes
    mesh = strategy.parallelism
    if mesh.whole:
        with suppress(UserError):
            plain = strategy.changed(compression="dense", exchange="")
            sharding = mesh.sharding if devices > 1 else DDP
            shard_devices = mesh.shard_devices if mesh.shard_devices < devices else 0
            alone = replace(mesh, data=devices, sharding=sharding, shard_devices=shard_devices)
            yield replace(plain, parallelism=alone, global_batch_size=batch)
    for micro_batches in MICRO_BATCHES:
        with suppress(UserError):
            sharding = ZERO3 if devices > 1 else DDP
            alone = Parallelism(data=devices, sharding=sharding, recompute=FULL_RECOMPUTE, micro_batches=micro_batches)
            yield Strategy(
                global_batch_size=batch, parallelism=alone, precision=strategy.precision, optimizer=strategy.optimizer
            )
