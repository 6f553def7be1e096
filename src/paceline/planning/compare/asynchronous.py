"""``predict_asynchronous(...)``: asynchronous SGD predicted from the catalogue, with the synchronous job to compare it to.

The one-worker profile is that of ``predict``: seconds of layers by roofline, the link and the optimizer of the catalogue. Its
spreads are the errors of the constants on held-out measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from paceline.calibration.uncertainty import Z80
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Assumption, Prediction
from paceline.prediction.asynchronous.profile import Profile, WorkerLayer, assign_servers
from paceline.prediction.asynchronous.result import AsyncResult
from paceline.prediction.asynchronous.simulate import simulate
from paceline.prediction.passes.compute import optimizer_seconds
from paceline.prediction.predictor import ORDINARY, StepPredictor
from paceline.prediction.step.costs import run_again
from paceline.prediction.step.step_model import StepModel
from paceline.strategy.exchanges.parameter_server import PARAMETER_SERVER
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.units import format_bandwidth, format_seconds
from paceline.workload.table import Workload

MOST_WORKERS = 128
"""Largest simulated number of workers. More take minutes."""
MOST_PARTS = 40
"""A network of more layers is simulated as about this many groups of adjacent layers."""
STEPS = 800
"""Counted steps of all workers together, but at least ``LEAST_STEPS`` of each."""
LEAST_STEPS, MOST_STEPS = 24, 100
PROFILED = 16
"""Steps of a profile that was not measured: quantiles of ``Efficiency.straggler_spread``."""
LAB = (
    "Simulations from a measured profile of one worker missed the throughput of 24 emulated jobs by 7.5% and their mean "
    "staleness by 5.0% (benchmarks/results/async_lab.csv)."
)
UNKNOWN = (
    "The effect of staleness on accuracy is unknown, not zero: it was not measured here. The figures "
    "compare samples a second, not the time to a target."
)


@dataclass(frozen=True, kw_only=True)
class AsyncPrediction:
    """Prediction of an asynchronous job.

    Attributes:
        result: throughput and staleness.
        worker: one worker alone: its step without any exchange, and its memory.
        synchronous: prediction of the synchronous job on the same workers; without the servers, unless they are workers too.
        strategy: batch, precision, optimizer and recomputation of the synchronous job, over parameter servers.
    """

    workload: str
    strategy: Mapping[str, Any]
    cluster: Mapping[str, Any]
    result: AsyncResult
    worker: Prediction
    synchronous: Prediction
    assumptions: tuple[str, ...] = field(default=())

    @property
    def speedup(self) -> float:
        """Samples/s relative to the synchronous job."""
        return self.result.samples_per_s / self.synchronous.samples_per_s

    @property
    def headline(self) -> str:
        """Warning that a worker does not fit, and by how much; empty if it fits."""
        return self.worker.headline

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict. ``staleness_effect`` is None: unknown."""
        return {
            "schema": 1,
            "workload": self.workload,
            "strategy": dict(self.strategy),
            "cluster": dict(self.cluster),
            **self.result.to_json(),
            "staleness_effect": None,
            "worker_step_s": self.worker.step_time_s,
            "memory_bytes": self.worker.memory_bytes,
            "fits": self.worker.fits,
            "speedup": self.speedup,
            "assumptions": list(self.assumptions),
            "synchronous": self.synchronous.to_json(),
        }


def predict_asynchronous(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    servers: int = 1,
    *,
    server_device: Device | None = None,
    predictor: StepPredictor = ORDINARY,
    drawn_steps: int = 0,
) -> AsyncPrediction:
    """Predict asynchronous SGD: every device of ``cluster`` is a worker, and ``servers`` further nodes hold the parameters.

    Args:
        strategy: strategy of the synchronous job to compare with. Each worker's mini-batch is its micro batch.
        server_device: device of a server's update; by default a device like the workers'.
        predictor: predictor of a worker's step, the link and the synchronous job, without an input pipeline.
        drawn_steps: steps of every worker in the timeline.

    Raises:
        UserError: a choice that the simulation lacks (compression, sharding, micro steps, several workers on one network
            link), no network, too many workers, more servers than parts of the network, a loader; or as ``Predictor.step``.
    """
    _check(cluster, strategy, predictor)
    if workload.tables is not None:
        raise UserError(
            f"asynchronous workers of {workload.name}: its tables lie divided among devices that exchange vectors in step",
            "predict it in step: leave --asynchronous out",
        )
    strategy = strategy.settled(workload, cluster)
    alone = strategy.changed(  # the servers hold the state of the optimizer
        world_size=1, servers=1, exchange="", global_batch_size=strategy.micro_batch_size, optimizer="sgd"
    )
    single = cluster.changed(num_nodes=1, network=cluster.intra_link)
    worker = predictor.step(workload, single, alone)
    model, efficiency = predictor.uncorrected.model(workload), predictor.uncorrected.typical
    factor = worker.step_time_s / model.step(single, alone).seconds
    network = predictor.observed_cluster(cluster).network
    layers = parts(model, alone, cluster.device, factor)
    sized = sum(part.size > 0 for part in layers)
    if servers > sized:
        raise UserError(
            f"{servers} servers for the {sized} parts that {workload.name} is simulated as",
            f"give at most {sized}: a part stays whole",
        )
    serving = server_device or cluster.device
    memory, launches = optimizer_seconds(
        OPTIMIZERS[strategy.optimizer], workload.num_parameters, len(workload.parameters), serving, efficiency
    )
    sigmas = efficiency.sigmas
    profile = Profile(
        name=workload.name,
        batch_size=strategy.micro_batch_size,
        layers=layers,
        update_s_per_byte=memory / (4 * workload.num_parameters),
        update_s=launches / sized,
        link_share=efficiency.bandwidth(network) / network.bandwidth.value,
        compute_spread=math.log(worker.high_s / worker.low_s) / (2 * Z80),
        network_spread=efficiency.link_sigma(network, sigmas.network),
        server_spread=sigmas.other,
        hosts_spread=sigmas.doubling,
    )
    latency = network.latency.value * efficiency.latency_factor
    result = simulate(
        profile,
        cluster.num_nodes,
        servers,
        link_bandwidth=network.bandwidth.value,
        latency=latency,
        steps=min(MOST_STEPS, max(LEAST_STEPS, STEPS // cluster.num_nodes)),
        drawn_steps=drawn_steps,
    )
    synchronous = predictor.step(workload, cluster, strategy)
    many = "server is a further node" if servers == 1 else f"{servers} servers are further nodes"
    notes = (
        f"The {many} on {network.name}: {format_bandwidth(network.bandwidth.value)} each way; {profile.link_share:.0%} of it "
        f"is reached. Latency {format_seconds(latency)}. Gradients and parameters travel as fp32.",
        f"A server updates with {strategy.optimizer} on {serving.name}: {format_seconds(memory + launches)} for the whole "
        "network, one gradient after another.",
        f"A server holds whole parts of the network. The fullest one holds {_fullest(profile, servers):.0%} of the parameters.",
        "A worker reads a server's parameters again as soon as the server has applied all its gradients.",
        *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in result.assumptions),
        LAB,
        UNKNOWN,
    )
    return AsyncPrediction(
        workload=workload.name,
        strategy={**synchronous.strategy, "exchange": PARAMETER_SERVER.name, "servers": servers},
        cluster={**synchronous.cluster, "servers": servers, "server_device": serving.name},
        result=result,
        worker=worker,
        synchronous=synchronous,
        assumptions=lazy(lambda: (*notes, *_of_worker(worker))),
    )


def _of_worker(worker: Prediction) -> Iterator[Assumption]:
    """Yield the assumptions of a worker's step. The servers have the optimizer, and the simulation has its own errors."""
    for assumption in worker.assumptions:
        if assumption.kind == "held-out error":
            yield Assumption(assumption.kind, f"A worker's step: {assumption[0].lower()}{assumption[1:]}", assumption.source)
        elif assumption.kind != "optimizer":
            yield assumption


def _check(cluster: Cluster, strategy: Strategy, predictor: StepPredictor) -> None:
    if predictor.uncorrected.loader:
        raise UserError("asynchronous workers are simulated without an input pipeline", "leave the loader out")
    if predictor.uncorrected.calibration is not None:
        raise UserError("asynchronous workers are simulated from the catalogue", "leave the calibration out")
    x, mesh = strategy.gradient_exchange, strategy.parallelism
    for what, is_on in (
        (f"compression {x.compression}", x.compression.compresses),
        (
            f"exchange {x.exchange}",
            not (x.exchange.by_engine or x.exchange.has_servers),
        ),
        (f"sharding {mesh.sharding}", mesh.sharding.shares_out),
        (f"{mesh.micro_batches} micro steps", mesh.micro_batches > 1),
        (f"an exchange every {strategy.sync_every} steps", strategy.sync_every > 1),
        ("a network that several devices hold together", not mesh.whole),
        (f"task {strategy.task}", not strategy.task.alone),
        ("samples of different length", strategy.tokens_per_sample.vary),
    ):
        if is_on:
            raise UserError(
                f"asynchronous training with {what} cannot be predicted", "leave it out, or predict the synchronous step"
            )
    if cluster.devices_per_node > 1:
        raise UserError(
            f"{cluster.devices_per_node} asynchronous workers on one network link cannot be predicted",
            "give one device per node, and more nodes",
        )
    if cluster.network == cluster.intra_link:
        raise UserError("the workers have no network to their servers", "give `network`, such as 10Gb/s")
    if cluster.num_nodes > MOST_WORKERS:
        raise UserError(f"{cluster.num_nodes} asynchronous workers take too long to simulate", f"give at most {MOST_WORKERS}")


def parts(model: StepModel, strategy: Strategy, device: Device, factor: float) -> tuple[WorkerLayer, ...]:
    """Return the layers of one worker. In a large network, adjacent layers are merged into parts of similar size."""
    workload = model.workload
    forward, backward = (
        seconds.total * factor for seconds in model.launched(model.passes(device, strategy), device, strategy.precision)
    )
    backward = backward + run_again(workload, strategy.parallelism.recomputation, forward)[0]
    owners, elements = [p.layer for p in workload.parameters], [4.0 * p.size for p in workload.parameters]
    sizes = np.bincount(owners, weights=elements, minlength=len(forward))
    part = np.arange(len(sizes))
    if len(sizes) > MOST_PARTS:
        middle = (np.cumsum(sizes) - sizes / 2) / sizes.sum() + (part + 0.5) / len(part)
        part = np.unique((middle / 2 * MOST_PARTS).astype(np.int64), return_inverse=True)[1]
    every = NormalDist(0.0, model.constants.straggler_spread or 1e-9)
    factors = [math.exp(every.inv_cdf((i + 0.5) / PROFILED)) for i in range(PROFILED)]
    return tuple(
        WorkerLayer(
            name=workload.layers[int(np.flatnonzero(part == i)[0])].name,
            size=float(sizes[part == i].sum()),
            forward_s=tuple(f * float(forward[part == i].sum()) for f in factors),
            backward_s=tuple(f * float(backward[part == i].sum()) for f in factors),
        )
        for i in range(int(part.max()) + 1)
    )


def _fullest(profile: Profile, servers: int) -> float:
    """Return the share of the bytes on the server with most of them."""
    sizes = [part.size for part in profile.layers if part.size]
    return float(np.bincount(assign_servers(sizes, servers), weights=sizes).max() / profile.size)
