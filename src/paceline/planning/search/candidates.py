"""Legal strategies of a space, and the reasons against all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.hardware import PRECISIONS, RECIPES, Cluster
from paceline.hardware.precision import WIDE
from paceline.planning.search.space import Space
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps
from paceline.strategy import COMPRESSIONS, OPTIMIZERS, SHARDINGS, Parallelism, Strategy
from paceline.strategy.codec_place import check_fabric
from paceline.strategy.exchanges import EXCHANGES, OF_HOSTS
from paceline.strategy.exchanges.allreduce import ALLREDUCE
from paceline.strategy.exchanges.hierarchical import HIERARCHICAL
from paceline.strategy.exchanges.sharded import SHARDED
from paceline.strategy.sharding import DISTRIBUTED
from paceline.strategy.strategy import CHOICES
from paceline.strategy.updates.weight_update import PLAIN_UPDATE
from paceline.strategy.usual_precision import usual_precision
from paceline.workload.table import Workload


def candidates(space: Space, work: TrainingTarget, left_out: Exclusions, workload: Workload | None = None) -> list[Candidate]:
    """Return all legal strategies on all clusters whose devices can each hold the network. Count the others in ``left_out``.

    Args:
        workload: if given and no precision is named, precisions wider than its usual one are left out.
    """
    if not space.whole:
        return []
    batches = sum(len(space.batches_on(cluster.world_size, work)) for cluster in space.clusters)
    templates = list(_templates(space, work, left_out, batches * len(space.accumulations)))
    return [candidate for cluster in space.clusters for candidate in _on(cluster, space, work, templates, left_out, workload)]


def in_more_micro_steps(
    space: Space, tried: Sequence[Candidate], steps: Steps, many: Callable[[Sequence[Candidate]], Steps]
) -> tuple[list[Candidate], Steps]:
    """Return strategies that fit in no number of micro steps of ``space``, in smaller micro batches, and their steps.

    Micro batches are of one sample, and of the largest power of two that fits if memory grows evenly with their samples. Only
    dense gradients in the first bucket size have them: others are compared in the numbers of ``space``.
    """
    coarse = [index for index in np.flatnonzero(~steps.fits).tolist() if _divides_further(space, tried[index][1])]
    coarse = [index for index in coarse if index not in steps.refused]
    meshes: dict[tuple[int, int], Parallelism] = {}  # equal meshes are one object, as those of templates

    def micro(index: int, size: int) -> Candidate:
        cluster, strategy = tried[index]
        mesh, times = strategy.parallelism, strategy.micro_batch_size * strategy.parallelism.micro_batches // size
        if (key := (id(mesh), times)) not in meshes:
            meshes[key] = replace(mesh, micro_batches=times)
        return cluster, replace(strategy, parallelism=meshes[key])

    single = [micro(index, 1) for index in coarse]
    of_single = many(single)
    several = []
    for index, fits, least in zip(coarse, of_single.fits.tolist(), of_single.memory_bytes.tolist(), strict=True):
        if not fits:
            continue
        size, times = tried[index][1].micro_batch_size, tried[index][1].parallelism.micro_batches
        most = 1 + (size - 1) * (steps.available_bytes[index] - least) / (steps.memory_bytes[index] - least)
        sizes = [of for of in (1 << n for n in range(1, size.bit_length())) if of <= most and size * times % of == 0]
        several += [micro(index, sizes[-1])] if sizes else []
    ends = range(len(single)), range(len(single), len(single) + len(several))
    return [*single, *several], merged_steps((ends[0], of_single), (ends[1], many(several)))


def _divides_further(space: Space, strategy: Strategy) -> bool:
    """Return whether the strategy has the smallest micro batch that ``space`` allows, of several samples."""
    mesh, size = strategy.parallelism, strategy.micro_batch_size
    if size == 1 or strategy.bucket_bytes != space.buckets[0] or not strategy.gradient_exchange.is_plain:
        return False
    return not any(times > mesh.micro_batches and size * mesh.micro_batches % times == 0 for times in space.accumulations)


def _templates(space: Space, work: TrainingTarget, left_out: Exclusions, times: int) -> Iterator[Strategy]:
    """Yield legal combinations of the choices that depend on neither cluster nor batch, with the fewest possible workers.

    The bucket size matters only if it cuts DDP's buckets or FSDP's units.
    """
    tried, barred = space.tried_precisions, space.barred(work)
    of_shares = space.of_shares
    same: dict[Any, Any] = {}  # equal parts are one object, so that prediction finds them by identity
    combinations = product(
        map(COMPRESSIONS.__getitem__, space.compressions or COMPRESSIONS),
        map(EXCHANGES.__getitem__, space.exchanges),
        map(SHARDINGS.__getitem__, space.shardings),
        space.recomputes,
        tried,
        space.buckets,
        space.servers,
        space.experts or (1,),
    )
    for compression, x, sharding, recompute, precision, bucket, several, expert in combinations:
        plain, serving = not compression.compresses, x.has_servers
        if (bucket != space.buckets[0] and not x.by_engine) or (several != space.servers[0] and not serving):
            continue  # a duplicate; units of other sizes are tried with the engine's exchange
        if expert > 1 and not (plain and x.by_engine):
            continue  # not tried, as Space says
        if not space.gathers(precision, sharding.name):
            if bucket == space.buckets[0]:
                left_out.add(f"weights of {precision} travel in no {space.gather_bits} bits with {sharding}", times)
            continue
        servers = several if serving else 1
        workers = servers * expert
        try:
            template = Strategy.of(
                data=workers,
                global_batch_size=workers,
                compression=compression.name,
                exchange=x,
                servers=servers,
                sharding=sharding,
                recompute=recompute,
                precision=precision,
                bucket_bytes=bucket,
                optimizer=space.optimizer,
                expert=expert,
                **(of_shares if sharding.shares_out else {}),
            )
            templates = dict.fromkeys(with_choices(template, combination) for combination in space.combinations)
            if space.updates and not any(each.weight_update != PLAIN_UPDATE for each in templates):
                template.changed(**space.updates)  # raises the reason
        except UserError as error:
            if bucket == space.buckets[0]:
                own = sharding is DISTRIBUTED or bool(space.gradient_bits)
                other = space.updates or (space.optimizer and not OPTIMIZERS[space.optimizer].plain)
                why = error.message if other and x.carries(compression) else _illegal(x.carries(compression), own)
                left_out.add(why, times, error.message)
            continue
        if compression.name in barred:
            left_out.add(barred[compression.name], times)
        elif sharding.shares_out and not plain and x not in _SHARED and space.exchanges == OF_HOSTS:
            left_out.add("compressed shards go to their owners or by nodes, unless another exchange is named", times)
        else:
            for each in templates:
                division, exchanged = each.parallelism, each.gradient_exchange
                yield replace(
                    each,
                    parallelism=same.setdefault(division, division),
                    gradient_exchange=same.setdefault(exchanged, exchanged),
                )


_SHARED = (ALLREDUCE, SHARDED, HIERARCHICAL)
"""Exchanges to try with compressed gradients and a sharded optimizer unless one is named."""


def with_choices(template: Strategy, choices: Mapping[str, Any]) -> Strategy:
    """Return the strategy with further choices, except those that do not apply to it."""
    for name, value in choices.items():
        item = CHOICES[name]
        owner = getattr(template, item.part) if item.part else template
        with suppress(UserError):
            template = template.changed(**{name: value}, **(item.plan.along(owner, value) if item.plan else {}))
    return template


def _illegal(carried: bool, own_collectives: bool) -> str:
    """Return why a combination is illegal. The count's example names the combination.

    Args:
        carried: whether the exchange carries the compression. ``own_collectives``: whether the optimizer has collectives.
    """
    if not carried:
        return "the exchange cannot carry the compression"
    if own_collectives:
        return "a distributed optimizer has its own collectives"
    return "the exchange does not reduce to the owners of shards"


def _on(
    cluster: Cluster,
    space: Space,
    work: TrainingTarget,
    templates: Sequence[Strategy],
    left_out: Exclusions,
    workload: Workload | None,
) -> Iterator[Candidate]:
    n = cluster.world_size
    batches = space.batches_on(n, work)
    here = []
    for template in templates:
        if n == 1 and template.bucket_bytes != space.buckets[0]:
            continue  # a duplicate: nothing is exchanged
        why = _excluded_on(cluster, template, not space.precisions, workload)
        if why:
            left_out.add(why, len(batches) * len(space.accumulations))
        else:
            here.append(template)
    divisions = {id(template.parallelism): template.parallelism for template in here}
    others = {id(template): {name: getattr(template, name) for name in _OF_TEMPLATE} for template in here}
    meshed: dict[tuple[int, int], list[tuple[dict[str, Any], Parallelism]]] = {}
    for times in sorted({times for batch in batches for times in space.times(batch, n)}):
        meshes = {key: replace(division, data=n, micro_batches=times) for key, division in divisions.items()}
        meshed[times, n] = []
        for template in here:
            choices, mesh = others[id(template)], meshes[id(template.parallelism)]
            if why := _update_refused(choices, mesh):
                left_out.add(why, len(batches))
            else:
                meshed[times, n].append((choices, mesh))
    for batch, (times, replicas) in product(batches, meshed):
        pairs = meshed[times, replicas]
        why = _batch(batch, times, replicas, work) or (_OTHER_SIZE if times not in space.times(batch, replicas) else "")
        if why:
            left_out.add(why, len(pairs), f"batch {batch} on {replicas} workers, {times} micro steps")
            continue
        for choices, mesh in pairs:  # a hundred thousand a second: ``dataclasses.replace`` takes three times as long
            yield cluster, Strategy(global_batch_size=batch, parallelism=mesh, **choices)


_OTHER_SIZE = "a micro step would have other samples of a replica than those that are named"


def _update_refused(choices: Mapping[str, Any], mesh: Parallelism) -> str:
    """Return why a mesh does not have the update of the weights; empty if it does. ``choices``: others of a strategy."""
    if choices["weight_update"] == PLAIN_UPDATE:
        return ""
    try:
        Strategy(global_batch_size=mesh.data * mesh.micro_batches, parallelism=mesh, **choices)
    except UserError as error:
        return error.message
    return ""


_OF_TEMPLATE = tuple(f.name for f in fields(Strategy) if f.name not in ("global_batch_size", "parallelism"))
"""Fields of a strategy that depend neither on the cluster nor on the batch."""


def _batch(batch: int, times: int, workers: int, work: TrainingTarget) -> str:
    if batch > work.largest_batch:
        if work.curve:
            return f"a global batch above {work.curve.high_batch:g} was never seen to reach {work.curve.target}"
        return f"a global batch above the largest published, {work.largest_batch:,} samples; naming it tries it"
    if batch % (workers * times):
        return "the global batch does not divide among the workers and their micro steps"
    return ""


def _excluded_on(cluster: Cluster, template: Strategy, choose: bool, workload: Workload | None) -> str:
    """Return why a strategy is not tried on this cluster. A single worker has no exchange, so only a plain all-reduce
    remains."""
    if why := precision_left_out(cluster, template.precision, choose, workload):
        return why
    if cluster.world_size % template.parallelism.expert:
        return "the devices of a stage are no whole groups of experts"
    plain = template.gradient_exchange.is_plain and not template.parallelism.sharding.shares_out
    if cluster.world_size == 1 and not plain:
        return "one worker has no other to exchange with"
    if cluster.world_size < template.gradient_exchange.servers:
        return f"{template.gradient_exchange.servers} servers need as many workers: a server is one of them"
    if cluster.world_size > (most := template.gradient_exchange.exchange.most_workers):
        return f"{template.gradient_exchange.exchange} is predicted for at most {most:,} workers"
    if template.gradient_exchange.exchange.uses_nodes and (cluster.num_nodes == 1 or cluster.devices_per_node == 1):
        return "a hierarchical exchange needs several nodes of several devices"
    x = template.gradient_exchange
    if x.placed:
        try:
            check_fabric(x, cluster)
        except UserError as error:
            return error.message
    return ""


_WIDEST_FIRST = tuple(PRECISIONS)


def precision_left_out(cluster: Cluster, precision: str, choose: bool, workload: Workload | None) -> str:
    """Return why a precision is not tried on a cluster; empty if it is tried. ``choose``: no precision was named."""
    if precision not in cluster.device.precisions:
        return f"{cluster.device.name} has no {precision}"
    if choose and PRECISIONS[precision].scales_loss and WIDE in cluster.device.peak_flops:
        return f"{precision} where {WIDE} is as fast (naming {precision} tries it)"
    if choose and precision in RECIPES:
        return f"the effect of {precision} on accuracy is unknown (naming {precision} tries it)"
    usual = usual_precision(workload, cluster.device) if choose and workload else None
    if usual and _WIDEST_FIRST.index(precision) < _WIDEST_FIRST.index(usual.name):
        return f"{precision}, which is wider than {usual} (naming {precision} tries it)"
    return ""
