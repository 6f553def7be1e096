"""The 80 % interval of a predicted step: from errors by resource, then moved to the tails of held-out runs."""

from __future__ import annotations

import math

from paceline.calibration.constants import Efficiency
from paceline.calibration.held_out_error import HeldOut, held_out, unseen_shift
from paceline.calibration.uncertainty import Z80, interval, shifted, spread
from paceline.prediction.passes.host import host_seconds, launches_of_step
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_inputs import StepInputs

Ends = tuple[float, float]


def fitted_factors(e: Efficiency, inputs: StepInputs, step: Step) -> Ends:
    """Return factors on a step, at most 1 and at least 1, from the errors of fitted constants (``uncertainty.interval``)."""
    forward, backward = step.kernels
    worked = float(forward.kernels.sum()) + float(backward.kernels.sum())
    conv = (forward.plain_conv + backward.plain_conv) / worked if worked else 0.0
    cluster = inputs.cluster
    device, seconds = cluster.device, step.seconds
    work = e.sigmas.work(device.chip in e.seen, e.knows(inputs.workload.name), device.kind == "gpu", conv)
    ends = (seconds, seconds)
    if cluster.world_size > 1:
        between = e.link_sigma(cluster.network, e.sigmas.network)
        inside = e.link_sigma(cluster.intra_link, e.sigmas.intra)
        fast, slow = (step.seconds_with_links(math.exp(sign * between), math.exp(sign * inside)) for sign in (-Z80, Z80))
        ends = (fast, slow)
    return interval(seconds, ends, spread(step.exposed, e.sigmas, work, cluster.num_nodes))


def missed_by(e: Efficiency, inputs: StepInputs, known: bool) -> HeldOut | None:
    """Return the error of comparable predictions on held-out runs. ``known``: whether records of this network correct them."""
    return held_out(e.level, inputs.cluster.num_nodes, known, not inputs.strategy.parallelism.whole)


def conformal_range(e: Efficiency, inputs: StepInputs, step_s: float, ends: Ends, known: bool) -> Ends:
    """Return the interval with the tails of held-out runs; wider for kinds of links that limited no such run.

    The upper end also assumes a slow host (``HeldOut.launch_s``), which affects steps of short kernels most.
    """
    missed, cluster = missed_by(e, inputs, known), inputs.cluster
    if missed is None or step_s <= 0:
        return ends
    more = 0.0 if cluster.world_size == 1 or cluster.outer_link.kind in missed.links else unseen_shift()
    launches = (
        launches_of_step(inputs.workload, inputs.strategy, e) if missed.launch_s and host_seconds(cluster.device, e) else 0.0
    )
    slow_host = math.log1p(missed.launch_s * launches / step_s)
    return shifted(step_s, ends, (missed.low + more, missed.high + more + slow_host))
