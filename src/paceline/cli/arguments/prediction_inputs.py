"""Workload, cluster, strategy and predictor that parsed options describe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from paceline import hardware
from paceline.calibration.observation import Observation
from paceline.calibration.records import is_probe, machine, observations
from paceline.cli.arguments.choice_arguments import PREDICTED, given_choices
from paceline.cli.arguments.exchange_arguments import exchange_choices, named_exchange
from paceline.cli.arguments.prediction_arguments import with_fabric
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.catalogue import is_device
from paceline.hardware.leaf_switches import on_leaves, parse_oversubscription
from paceline.hardware.precision import precision_on
from paceline.planning.search.lighter_jobs import AdjustableJob
from paceline.prediction import Predictor, StepPredictor, fit
from paceline.strategy import Strategy
from paceline.strategy.frameworks import framework_of
from paceline.strategy.tasks.lengths import SampleLengths
from paceline.strategy.tasks.task import Reward, StepTask
from paceline.strategy.usual_precision import usual_choices, usual_precision
from paceline.strategy.worker_counts import settled_batch
from paceline.verbs import largest_batch
from paceline.workload import Workload
from paceline.workload.builders.adapters.lora import parse_lora

Inputs = tuple[Workload, Cluster, Strategy]


def prediction_inputs(o: argparse.Namespace, servers: int | None = None) -> Inputs:
    """Return the inputs given by the options of ``add_prediction_arguments``. ``servers`` replaces ``--servers``. Raises
    UserError."""
    machines = cluster_of(o)
    if (x := named_exchange(o)) and x.uses_nodes and machines.num_nodes == 1:
        raise UserError("a hierarchical exchange needs several nodes", "leave --exchange out, or give --nodes and --network")
    network = workload_of(o)
    _settle_batch(o, machines)
    choices: dict[str, Any] = {
        "world_size": machines.world_size,
        **given_choices(o, (item for item in PREDICTED if item.has_default)),
        "precision": _precision(o, network, machines),
        **exchange_choices(o),
        **({} if servers is None else {"servers": servers}),
    }
    choices = Strategy.completed(choices, usual_choices(network, choices, framework_of(o.framework)))
    batch = largest_batch(network, machines, choices, plain_predictor(o)) if o.global_batch is None else o.global_batch
    return network, machines, Strategy.of(**choices, global_batch_size=batch)


def _settle_batch(o: argparse.Namespace, machines: Cluster) -> None:
    """Turn the samples of a device into the global batch and the micro batches of a step. Raises UserError."""
    if o.micro_batch_size is None:
        return
    divided, given = o.tensor * o.pipeline * o.context, o.global_batch
    o.global_batch, steps = settled_batch(o.micro_batch_size, machines.world_size, divided, given, o.grad_accum)
    o.grad_accum = o.grad_accum if given is None else steps
    o.micro_batch_size = None


def _precision(o: argparse.Namespace, network: Workload, machines: Cluster) -> str:
    """Return the given precision, or the usual one."""
    if o.precision is None:
        return usual_precision(network, machines.device).name
    return precision_on(o.precision, machines.device.precisions)


def workload_of(o: argparse.Namespace, seq_len: int | None = None) -> Workload:
    """Return the workload given by the options of ``add_workload_arguments``. ``seq_len``: default sequence length in tokens.
    Raises UserError."""
    length = seq_len if o.seq_len is None else o.seq_len
    if length is None and getattr(o, "task", None):
        task = StepTask.of(o.task)
        length = task.prompt + task.completion if isinstance(task, Reward) and task.prompt else None
    lengths = SampleLengths.of(getattr(o, "tokens_per_sample", None) or "")
    if length is None and lengths.vary and not lengths.packed:
        length = lengths.longest
    return Workload.named(o.workload, length, args=o.args, inputs=o.input, lora=o.lora)


def job_of(o: argparse.Namespace, workload: Workload) -> AdjustableJob:
    """Return the job of the options, as it may become lighter: with other adapters, and shorter sequences."""

    def made(lora: str, tokens: int) -> Workload:
        return workload_of(argparse.Namespace(**{**vars(o), "lora": lora or o.lora, "seq_len": tokens or o.seq_len}))

    return AdjustableJob(made, parse_lora(o.lora) if o.lora else None, workload.tokens)


def predictor(o: argparse.Namespace, loader: float = 0.0, worker_times: tuple[float, ...] = ()) -> StepPredictor:
    """Return a predictor with the options' software level and records, and input of ``loader`` samples/s.

    Raises:
        UserError: an option that is not legal.
    """
    plain = plain_predictor(o, loader).changed(worker_times=worker_times)
    measured = measured_steps(o)
    return fit(measured, plain) if measured else plain


def plain_predictor(o: argparse.Namespace, loader: float = 0.0) -> Predictor:
    """Return a predictor that uses no records."""
    return Predictor(framework=o.framework, loader=loader, attention=o.attention, compile=o.compile, year=o.software_year)


def measured_steps(o: argparse.Namespace) -> Sequence[Observation]:
    """Return the steps of the records; empty without records. Raises UserError."""
    if not o.records:
        return ()
    measured, probe = observations(o.records), next(filter(is_probe, o.records), None)
    named = next((name for name in ("device", "cluster", "on") if getattr(o, name, None)), "")
    if named and probe:
        raise UserError(f"--{named} and {probe}, a probe, both name the device", "leave one of them out; plan needs --device")
    return measured


def cluster_of(o: argparse.Namespace) -> Cluster:
    """Return the job's cluster. Raises UserError."""
    if o.cluster is not None:
        repeated = [name for name in ("device", "devices-per-node", "nodes") if getattr(o, name.replace("-", "_")) is not None]
        if repeated:
            raise UserError(f"--cluster says what --{repeated[0]} says", "give one of the two: --cluster '2x8 A100'")
        return _on_leaves(Cluster.named(o.cluster, o.network), o)
    per_node = o.devices_per_node
    nodes = o.nodes if o.nodes is not None else len(per_node) if isinstance(per_node, tuple) else 1
    if isinstance(per_node, tuple) and nodes != len(per_node):
        raise UserError(f"--nodes {nodes} and the devices of {len(per_node)} nodes", "leave --nodes out")
    if o.device and per_node is None and o.nodes is None and _counts_nodes(o.device):
        return _on_leaves(Cluster.named(o.device, o.network), o)
    if o.device:
        return _on_leaves(hardware.cluster(o.device, per_node, nodes, o.network), o)
    if not o.records:
        instead = "give --device or --cluster (paceline hardware list), or --records of a run on yours"
        raise UserError("no device is named", instead)
    measured = machine(o.records)
    per_node = 1 if per_node is None else per_node
    if nodes > 1 and not o.network and measured.network.kind == "loopback":
        raise UserError(f"{nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
    between = hardware.network(o.network) if o.network else measured.network
    return _on_leaves(measured.changed(devices_per_node=per_node, num_nodes=nodes, network=between), o)


def _counts_nodes(text: str) -> bool:
    """Return whether a device's text describes a cluster: ``2x8 H100, NDR``."""
    if is_device(text):
        return False
    from paceline.hardware.phrases.machine_phrase import machine_phrase  # a name alone needs no grammar

    said = machine_phrase(text)
    return said.known and (said.nodes is not None or said.network is not None or said.count is not None)


def _on_leaves(machines: Cluster, o: argparse.Namespace) -> Cluster:
    """Return the cluster with the leaf switches, cards and switches that add, as the options describe them. Raises
    UserError."""
    return with_fabric(on_leaves(machines, o.leaf_nodes, parse_oversubscription(o.oversubscription)), o)
