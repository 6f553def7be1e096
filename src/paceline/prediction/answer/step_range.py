"""The 80 % interval of a predicted step, from errors by resource and from the errors of held-out runs.

The errors of the device, the links and the codec are taken as independent. Device and codec count by their share of the step.
Links count by their effect: the step is scheduled again with links at either end of the links' 80 % interval, since it may then
wait for an exchange that is hidden now. Squares add at each end. The error of the device is larger for a device or a model
outside the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.calibration.constants import Efficiency, assumed
from paceline.calibration.product_curves import has_curve
from paceline.calibration.software_progress import later_ends
from paceline.calibration.uncertainty import HOST, HOST_WAIT, LINKS, WORK, Z80, Sigmas
from paceline.prediction.answer.held_out_error import HeldOut, held_out, unseen_shift
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
    own = spread(step.exposed, e.sigmas, work, cluster.num_nodes)
    return widened(interval(seconds, ends, own), later_ends(e.year))


def missed_by(e: Efficiency, inputs: StepInputs, known: bool) -> HeldOut | None:
    """Return the error of comparable predictions on held-out runs. ``known``: whether records of this network correct them."""
    return held_out(e.level, inputs.cluster.device.kind, known)


def held_out_range(e: Efficiency, inputs: StepInputs, step_s: float, ends: Ends, known: bool) -> Ends:
    """Return the interval as wide as held-out runs need; wider for kinds of links that limited no such run.

    The upper end also covers a slow host (``HeldOut.launch_s``), which affects steps of short kernels most. Its error and the
    others are independent, so squares add.
    """
    missed, cluster = missed_by(e, inputs, known), inputs.cluster
    if missed is None or step_s <= 0:
        return ends
    factor = 1.0 if has_curve(cluster.device, inputs.strategy.precision) else missed.unmeasured
    more = 0.0 if cluster.world_size == 1 or cluster.outer_link.kind in missed.links else unseen_shift()
    low = factor * missed.low * math.log(step_s / max(ends[0], 1e-30))
    high = factor * missed.high * math.log(max(ends[1], 1e-30) / step_s)
    slow_host = math.log1p(missed.launch_s * waiting_launches(e, inputs, step_s)) if missed.launch_s else 0.0
    faster, slower = reported_spread(e)
    return step_s * math.exp(-math.hypot(low, faster) - more), step_s * math.exp(math.hypot(high, slow_host, slower) + more)


def reported_spread(e: Efficiency) -> Ends:
    """Return the logarithms by which runs that users report are faster and slower than the ends of the range, in addition.

    The two plain levels have none: their ranges come from published runs of those levels. A run under a framework that a user
    names also differs by releases, data and logging (``benchmarks/fit_frameworks.py``).
    """
    return (0.0, 0.0) if e.framework.plain else tuple(assumed("reported_spread"))  # type: ignore[return-value]


def waiting_launches(e: Efficiency, inputs: StepInputs, step_s: float) -> float:
    """Return the kernels that the host launches for each second of a step, at most as many as it can launch."""
    device = inputs.cluster.device
    host_s = host_seconds(device, e)
    if not host_s or step_s <= 0:
        return 0.0
    return min(launches_of_step(inputs.workload, inputs.strategy, e, device) / step_s, 1 / host_s)


def spread(exposed: Mapping[Any, float], sigmas: Sigmas, work: float, nodes: int = 1) -> float:
    """Return the standard deviation of the logarithm of a step that waits ``exposed`` seconds for each resource, without links.

    Args:
        work: standard deviation for the device's own work (``Sigmas.work``).
    """
    step = sum(exposed.values())
    if step <= 0:
        return 0.0
    working = sum(seconds for name, seconds in exposed.items() if name in WORK)  # one error affects all of it
    waits = {name: HOST_WAIT if name in HOST else sigmas.other for name in exposed if name not in WORK | LINKS}
    others = (exposed[name] / step * sigma for name, sigma in waits.items())
    return math.hypot(working / step * work, *others, sigmas.doubling * math.log2(nodes))


def interval(step_s: float, ends: tuple[float, float], own: float) -> tuple[float, float]:
    """Return two factors on the predicted step, one at most 1 and one at least 1, that should enclose 80 % of measured steps.

    Args:
        step_s: the predicted step, the median.
        ends: the step with links at the fast and at the slow end of their interval.
        own: ``spread`` of all other errors.
    """
    if step_s <= 0:
        return 1.0, 1.0
    fast, slow = (math.hypot(Z80 * own, math.log(end / step_s)) for end in ends)
    return math.exp(-fast), math.exp(slow)


def widened(factors: Ends, more: Ends) -> Ends:
    """Return the factors of ``interval`` with further independent errors: logarithms below and above the step."""
    low, high = (math.hypot(math.log(factor), extra) for factor, extra in zip(factors, more, strict=True))
    return math.exp(-low), math.exp(high)
