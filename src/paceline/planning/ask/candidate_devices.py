"""Candidate devices: the rentals worth a plan, by dollars and speed of one device."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware.prices import GIVEN, UNDATED, Price, price
from paceline.planning.ask.rentals import Rental
from paceline.planning.ask.training_question import TrainingQuestion
from paceline.strategy import Strategy
from paceline.strategy.usual_precision import usual_precision

CHEAPEST = 5
"""Devices to plan on, from the lowest dollars a sample up."""
JOINED = 3
"""Devices to plan on of those that several nodes are let of, from the lowest dollars a sample up."""
FASTEST = 3
"""Devices to plan on, from the highest speed down."""
FEW = 2
"""Devices of each kind to compare with a choice."""
STEP_FLOPS = 2e13
"""FLOPs of a step that keep any device busy: 20 ms at 1 PFLOP/s."""
MOST_SAMPLES = 256


def samples_per_s(question: TrainingQuestion, name: str) -> float:
    """Return the predicted samples a second of one device at a busy batch, whether or not its memory holds that; 0 where the
    device cannot run the precision of the question."""
    cluster, workload = hardware.cluster(name, 1), question.workload
    batch = min(max(math.ceil(STEP_FLOPS / max(workload.flops_per_sample, 1.0)), 1), MOST_SAMPLES)
    stated = question.choices.get("precision")
    precision = stated if isinstance(stated, str) else usual_precision(workload, cluster.device).name
    try:
        strategy = Strategy.of(world_size=1, global_batch_size=batch, precision=precision)
        return question.predictor.step(workload, cluster, strategy).samples_per_s
    except UserError:
        return 0.0


def promising(question: TrainingQuestion, every: Sequence[Rental]) -> list[Rental]:
    """Return the rentals of the devices with the lowest dollars a sample, alone and in several nodes, and of the fastest.

    All whose price the user gave are among them. Devices that no rental holds the network on are not, and undated listings
    count only where there is no other.
    """
    able = [rental for rental in every if question.may_hold(rental.cluster)]
    able = [rental for rental in able if rental.listing.date != UNDATED] or able
    speeds = {name: samples_per_s(question, name) for name in dict.fromkeys(x.cluster.device.name for x in able)}
    alone = _dollars([x for x in able if x.cluster.num_nodes == 1], speeds)
    joined = _dollars([x for x in able if x.cluster.num_nodes > 1], speeds)
    kept = {*_least(alone, CHEAPEST), *_least(joined, JOINED), *heapq.nlargest(FASTEST, speeds, key=speeds.__getitem__)}
    kept |= {x.cluster.device.name for x in able if x.listing.provider == GIVEN or not x.listing.packaged}
    return [rental for rental in able if rental.cluster.device.name in kept]


def compared(question: TrainingQuestion, names: Collection[str], node_sizes: Sequence[int]) -> list[str]:
    """Return the few devices with the lowest dollars a sample, and the few fastest, in the order of ``names``.

    Several nodes are compared only with devices whose machines are let with a network. Undated listings count only where there
    is no other.
    """
    let = {name: listing for name in names if (listing := price(name, question.prices, node_sizes))}
    let = {name: listing for name, listing in let.items() if _lets(listing, node_sizes)}
    let = {name: listing for name, listing in let.items() if listing.date != UNDATED} or let
    speeds = {name: speed for name in let if (speed := samples_per_s(question, name))}
    dollars = {name: let[name].usd_per_hour(node_sizes) / speed for name, speed in speeds.items()}
    kept = {*_least(dollars, FEW), *heapq.nlargest(FEW, speeds, key=speeds.__getitem__)}
    return [name for name in names if name in kept]


def _lets(listing: Price, node_sizes: Sequence[int]) -> bool:
    """Return whether a listing lets such nodes, several only with a network between them."""
    return not listing.packaged or (listing.holds(max(node_sizes)) and (len(node_sizes) == 1 or listing.joins))


def _dollars(rentals: Sequence[Rental], speeds: Mapping[str, float]) -> dict[str, float]:
    """Return the least dollars a sample of each device, without what scaling loses."""
    least: dict[str, float] = {}
    for rental in rentals:
        name = rental.cluster.device.name
        if speeds[name]:
            least[name] = min(least.get(name, math.inf), rental.usd_per_device_hour / speeds[name])
    return least


def _least(values: Mapping[str, float], number: int) -> list[str]:
    return heapq.nsmallest(number, values, key=values.__getitem__)
