"""Conditions between numbers of workers, batches, servers and ranks. Each function takes the strategy and raises UserError."""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError, check_count
from paceline.strategy.codec_place import IN_CARD


def multiples(value: int, of: int) -> str:
    """Name the multiples of ``of`` on both sides of ``value``; only the first if ``value`` is below it."""
    low = max(value // of * of, of)
    return f"{low} or {low + of}" if value > of else f"{of}"


def check_servers(strategy: Any) -> None:
    """Check that no more workers serve than exchange gradients with each other."""
    mesh, servers = strategy.parallelism, strategy.gradient_exchange.servers
    among = mesh.data // mesh.sharers if mesh.sharding.weights else mesh.data
    if strategy.sync_every > 1:
        among = strategy.worker_count
    if servers > among:
        whom = f"{among} workers" if among == mesh.data else f"{among} copies of each share"
        raise UserError(f"{servers} servers among {whom}: a server is one of them", f"give at most {among} servers")


def check_workers(strategy: Any) -> None:
    """Check that the devices form two or more equal workers of local steps, and that their exchange is one between workers."""
    mesh, x, every = strategy.parallelism, strategy.gradient_exchange, f"sync_every {strategy.sync_every}"
    if mesh.sharding.weights and not mesh.shard_devices:
        raise UserError(
            f"{every} with {mesh.sharding} over all {mesh.data} devices: they are one worker, which has none to exchange with",
            "give shard_devices, the devices that share one worker's copy, or sharding ddp",
        )
    size, shard = strategy.worker_devices, mesh.sharers if mesh.sharding.weights else 1
    if size == 1:
        return
    if size % shard:
        raise UserError(f"workers of {size} devices, of which {shard} share a copy", f"nearest legal: {multiples(size, shard)}")
    if mesh.data % size:
        legal = f"nearest legal: {multiples(mesh.data, size)} devices"
        raise UserError(f"{mesh.data} devices are no whole workers of {size}", legal)
    if mesh.data == size:
        raise UserError(
            f"{every} with one worker of {size} devices, which has none to exchange with",
            "give more devices, or smaller workers: shard_devices, worker_devices",
        )
    check_between_workers(x, size, every)
    if mesh.gather_bits:
        raise UserError(f"{every} with weights gathered in {mesh.gather_bits} bits", "leave gather_bits out")


def check_between_workers(x: Any, devices: int, every: str) -> None:
    """Raise UserError for a gradient exchange that workers of several devices do not have."""
    if devices > 1 and (x.exchange.uses_nodes or x.exchange.uses_switch or x.codec_at is IN_CARD):
        what = f"a codec {x.codec_at.text}" if x.codec_at is IN_CARD else f"exchange {x.exchange}"
        raise UserError(
            f"{every} between workers of {devices} devices with {what}",
            "leave it out: each device exchanges its part with the same part of the other workers",
        )


def check_nodes(strategy: Any) -> None:
    """Check that the workers fill whole nodes."""
    workers, local = strategy.parallelism.data, strategy.gradient_exchange.ranks_per_node
    if workers % local:
        legal = f"nearest legal: {multiples(workers, local)} workers"
        raise UserError(f"{workers} workers are not whole nodes of {local} ranks", legal)


def check_batch(strategy: Any) -> None:
    """Check that the batch divides among the workers and their micro steps."""
    mesh, batch = strategy.parallelism, strategy.global_batch_size
    if batch % (mesh.data * mesh.micro_batches):
        whom = f"{mesh.data} workers" if mesh.micro_batches == 1 else f"{mesh.data} workers in {mesh.micro_batches} micro steps"
        legal = f"nearest legal: {multiples(batch, mesh.data * mesh.micro_batches)}"
        raise UserError(f"global batch {batch} does not divide among {whom}", legal)


def settled_batch(
    each: int, world_size: int, divided: int, global_batch: int | None = None, steps: int | None = None
) -> tuple[int, int]:
    """Return the global batch, and the micro steps that it takes.

    Args:
        each: samples of a device in a micro step.
        divided: devices of a replica.
        global_batch, steps: as given; None if not.

    Raises:
        UserError: a batch that is no multiple, or three numbers that contradict each other.
    """
    each = check_count(each, "samples of a device in a micro step")
    replicas = max(1, world_size // divided)
    counted = f"{each:,} samples x {replicas:,} replicas"
    if global_batch is None:
        return each * replicas * (steps or 1), steps or 1
    if steps is None:
        steps, rest = divmod(global_batch, each * replicas)
        if rest or not steps:
            nearest = each * replicas * max(1, steps)
            raise UserError(f"`global_batch` {global_batch:,} is no multiple of {counted}", f"nearest legal: {nearest:,}")
    elif global_batch != each * replicas * steps:
        whole = each * replicas * steps
        said = f"{counted} x {steps:,} micro batches are {whole:,}, and `global_batch` is {global_batch:,}"
        raise UserError(said, "leave one of `micro_batch_size`, `grad_accum` and `global_batch` out")
    return global_batch, steps
