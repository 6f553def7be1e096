"""Asynchronous SGD with parameter servers, simulated event by event from a one-worker profile.

No worker waits for another. Each pulls the parameters, runs its forward pass layer by layer as they arrive, runs its backward
pass, and pushes the gradient of each layer as soon as it is ready. A server applies gradients one at a time in the order of
arrival, and answers with its current parameters. The times of each step are those of one profiled step, drawn at random.

The method is that of Z. Li, W. Yan, M. Paolieri, L. Golubchik 2020, Throughput Prediction of Asynchronous SGD in TensorFlow,
ICPE, pp. 76-87 (arXiv 1911.04650), and of Z. Li, M. Paolieri, L. Golubchik, S.-H. Lin, W. Yan 2022, Predicting Throughput of
Distributed Stochastic Gradient Descent, IEEE TPDS 33(11): synthetic traces of many workers from the profile of one, with
the dependencies between parts received and pending computations, and concurrent transmissions that share the links.
Parameter servers: M. Li et al. 2014, Scaling Distributed Machine Learning with the Parameter Server, OSDI.
Asynchronous SGD and staleness: J. Dean et al. 2012, Large Scale Distributed Deep Networks, NIPS (Downpour SGD).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from paceline.calibration.uncertainty import Z80
from paceline.errors import UserError, unknown
from paceline.prediction.asynchronous.engine import Pull, SimulatedRun, Simulation
from paceline.prediction.asynchronous.profile import Profile, WorkerLayer
from paceline.prediction.asynchronous.result import AsyncResult

STARTS = 4
"""Number of simulations. A few workers keep their initial phases for long, so one start does not represent the
others. A setting: the run time grows with it."""


def simulate(
    profile: Profile,
    workers: int,
    servers: int = 1,
    *,
    link_bandwidth: float,
    latency: float = 0.0,
    steps: int = 100,
    seed: int = 0,
    pull: Pull = "server",
    drawn_steps: int = 0,
) -> AsyncResult:
    """Simulate ``workers`` workers and ``servers`` parameter servers, each on its own host.

    Args:
        link_bandwidth: bytes/s of every host's link in each direction; ``profile.link_share`` of it is payload.
        latency: seconds of a message from host to host.
        steps: counted steps of every worker, over all starts. A third as many uncounted steps precede them in each start.
        seed: seed of the random draws. Equal seeds give equal results; additional workers do not change the draws of others.
        pull: the updates that a worker waits for before it reads a parameter again: those of all its gradients ("step":
            TensorFlow), of the gradients on the same server ("server": the request follows the gradients on their
            connection), or of this parameter ("tensor": BytePS).
        drawn_steps: steps of every worker in the timeline.

    Raises:
        UserError: impossible numbers, fewer tensors than servers, or an unknown ``pull``.
    """
    _check(profile, workers, servers, link_bandwidth, latency, steps, pull)
    each = -(-steps // STARTS)
    warm = max(1, each // 3)
    runs = []
    for start in range(STARTS):
        simulation = Simulation(
            profile, workers, servers, link_bandwidth, latency, pull, [seed, start], 0 if start else drawn_steps
        )
        runs.append(simulation.run(warm + each, warm))
    rates = [_updates_per_s(run) for run in runs]
    rate = math.fsum(rates) / STARTS

    def slower(compute: float = 0.0, network: float = 0.0, server: float = 0.0) -> float:
        """Return updates/s of the first start if its parts take the given numbers of standard deviations longer."""
        other = _stretched(profile, math.exp(compute * profile.compute_spread), math.exp(server * profile.server_spread))
        bandwidth = link_bandwidth * math.exp(-network * profile.network_spread)
        return _updates_per_s(
            Simulation(other, workers, servers, bandwidth, latency, pull, [seed, 0], 0).run(warm + each, warm)
        )

    parts = (("compute", profile.compute_spread), ("network", profile.network_spread), ("server", profile.server_spread))
    widths = [math.log(rates[0] / slower(**{part: Z80})) for part, spread in parts if spread]
    hosts = Z80 * profile.hosts_spread * math.log2(workers + servers)
    width = math.exp(math.hypot(*widths, hosts, Z80 * statistics.stdev(map(math.log, rates))))
    stale = sum((run.stale for run in runs), Counter[int]())
    total = stale.total()
    return AsyncResult(
        workers=workers,
        servers=servers,
        samples_per_s=profile.batch_size * rate,
        low_samples_per_s=profile.batch_size * rate / width,
        high_samples_per_s=profile.batch_size * rate * width,
        updates_per_s=rate,
        step_s=workers / rate,
        staleness=tuple(stale[k] / total for k in range(max(stale) + 1)),
        utilisation=_mean([_utilisation(run, workers, servers, link_bandwidth * profile.link_share) for run in runs]),
        assumptions=(
            "hosts are equally fast, and every worker's steps are drawn from one profile",
            "links are shared max-min fairly; switches do not block and nothing else loads them",
            "the range covers what is unknown about the workers' steps, the capacity of their links, the servers, and the "
            "effects of more hosts than one worker and one server",
        ),
        timeline=runs[0].events,
    )


def _check(profile: Profile, workers: int, servers: int, bandwidth: float, latency: float, steps: int, pull: str) -> None:
    tensors = sum(layer.size > 0 for layer in profile.layers)
    for what, count in (("workers", workers), ("servers", servers), ("steps", steps)):
        if count < 1:
            raise UserError(f"{count} {what}", "give a whole number from 1 up")
    if servers > tensors:
        raise UserError(f"{servers} servers for {tensors} tensors", f"give at most {tensors}: a tensor stays whole")
    if not 0 < bandwidth < math.inf:
        raise UserError(f"a link of {bandwidth} bytes/s", "give a positive number")
    if not 0 <= latency < math.inf:
        raise UserError(f"a latency of {latency} s", "give a number from 0 up")
    if pull not in get_args(Pull):
        raise unknown("pull", pull, get_args(Pull))


def _updates_per_s(run: SimulatedRun) -> float:
    """Return the sum over workers of counted steps divided by the seconds from the first to the last end of one."""
    begin, end = run.begin, run.end
    counted = zip(begin.steps, end.steps, begin.last, end.last, strict=True)
    return math.fsum((after - before) / (last - first) for before, after, first, last in counted)


def _utilisation(run: SimulatedRun, workers: int, servers: int, rate: float) -> Mapping[str, float]:
    begin, end = run.begin, run.end
    seconds = end.seconds - begin.seconds
    up, down = ([b - a for a, b in zip(*x, strict=True)] for x in ((begin.up, end.up), (begin.down, end.down)))
    used = {
        "workers": (end.computed - begin.computed) / seconds / workers,
        "worker links up": sum(up) / rate / seconds / workers,
        "worker links down": sum(down) / rate / seconds / workers,
    }
    for server in range(servers):
        used[f"server {server} link in"] = up[server] / rate / seconds
        used[f"server {server} link out"] = down[server] / rate / seconds
        used[f"server {server} update"] = (end.updating[server] - begin.updating[server]) / seconds
    return used


def _mean(shares: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {name: math.fsum(share[name] for share in shares) / len(shares) for name in shares[0]}


def _stretched(profile: Profile, compute: float, server: float) -> Profile:
    """Return the profile with the worker's times multiplied by ``compute`` and the server's by ``server``."""

    def longer(layer: WorkerLayer) -> WorkerLayer:
        forward, backward = (tuple(x * compute for x in times) for times in (layer.forward_s, layer.backward_s))
        return replace(layer, forward_s=forward, backward_s=backward)

    return replace(
        profile,
        layers=tuple(map(longer, profile.layers)),
        update_s=profile.update_s * server,
        update_s_per_byte=profile.update_s_per_byte * server,
    )
