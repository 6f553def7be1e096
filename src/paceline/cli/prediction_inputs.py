"""The workload, cluster, strategy and predictor that parsed options describe."""

from __future__ import annotations

import argparse
from dataclasses import replace

from paceline import hardware
from paceline.calibration.records import is_probe, machine, observations
from paceline.cli.exchange_arguments import exchange_choices
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Correction, Predictor, fit
from paceline.strategy import Strategy
from paceline.units import parse_bytes
from paceline.workload import Workload

Inputs = tuple[Workload, Cluster, Strategy]


def prediction_inputs(o: argparse.Namespace, servers: int | None = None) -> Inputs:
    """What ``add_prediction_arguments`` were given; ``servers`` replaces ``--servers``. Raises UserError."""
    machines = _cluster(o)
    if o.exchange == "hierarchical" and machines.num_nodes == 1:
        raise UserError("a hierarchical exchange needs several nodes", "leave --exchange out, or give --nodes and --network")
    network = Workload.named(o.workload, o.seq_len)
    strategy = Strategy.of(
        world_size=machines.world_size,
        global_batch_size=o.global_batch,
        precision=o.precision,
        servers=o.servers if servers is None else servers,
        **exchange_choices(o),
        bucket_bytes=int(parse_bytes(o.bucket)),
        grad_accum_steps=o.grad_accum,
        sharding=o.sharding,
        recompute=o.recompute,
        optimizer=o.optimizer or "",
    )
    return network, machines, strategy


def predictor(o: argparse.Namespace, loader: float = 0.0) -> Predictor:
    """With the options' software level and records, fed by ``loader`` samples/s. Raises UserError."""
    plain = Predictor(software=o.software, loader=loader)
    return replace(plain, correction=correction(o, plain))


def correction(o: argparse.Namespace, plain: Predictor) -> Correction | None:
    """What the records teach about the predictor without them; None without records. Raises UserError."""
    if not o.records:
        return None
    measured, probe = observations(o.records), next(filter(is_probe, o.records), None)
    if o.device and probe:
        raise UserError(f"--device and {probe}, a probe, both name the device", "leave one of them out; plan needs --device")
    return fit(measured, plain) if measured else None


def _cluster(o: argparse.Namespace) -> Cluster:
    if o.device:
        return hardware.cluster(o.device, o.devices_per_node, o.nodes, o.network)
    if not o.records:
        raise UserError("no device is named", "give --device (paceline hardware list), or --records of a run on yours")
    measured = machine(o.records)
    if o.nodes > 1 and not o.network and measured.network.kind == "loopback":
        raise UserError(f"{o.nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
    between = hardware.network(o.network) if o.network else measured.network
    return measured.changed(devices_per_node=o.devices_per_node, num_nodes=o.nodes, network=between)
