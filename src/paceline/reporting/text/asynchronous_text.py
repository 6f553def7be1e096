"""Asynchronous job as text: throughput, bottleneck, staleness, and the synchronous job to compare."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.planning.compare.asynchronous import AsyncPrediction
from paceline.reporting.text.screen import GAP, Bar, Block, Pair, Screen, heading, item
from paceline.reporting.values import clean, count, memory, number, percent, rate_range, ratio
from paceline.strategy.recompute import Recompute

FULL = 0.7
"""Share of the time from which on a resource is what all wait for."""
NOT_KNOWN = "what staleness costs is unknown: not measured, and not taken to be zero"


def asynchronous_screen(prediction: AsyncPrediction) -> Screen:
    """Return the screen: throughput, bottleneck, staleness and the synchronous job, with the assumptions behind ``--why``."""
    name = clean(prediction.workload, 40)
    return Screen(
        title=f"{name}, asynchronous SGD with parameter servers, predicted: {subtitle(prediction)}",
        answer=tuple(_answer(prediction)),
        brief=f"{name}, asynchronous, {subtitle(prediction)}: {throughput(prediction)}, limited by {limit(prediction)}",
        why=(heading("It rests on:"), *map(item, prediction.assumptions)),
        why_holds=count(len(prediction.assumptions), "assumption"),
        alarm=prediction.headline,
    )


def throughput(prediction: AsyncPrediction) -> str:
    """Format the throughput: ``1470 samples/s (869-2490), 11.5 updates/s``."""
    r = prediction.result
    spread = f"{number(r.low_samples_per_s)}-{number(r.high_samples_per_s)}"
    return f"{number(r.samples_per_s)} samples/s ({spread}, 80 % range), {number(r.updates_per_s)} updates/s"


def subtitle(prediction: AsyncPrediction) -> str:
    """Describe the job: ``8 workers of 32 samples each, 2 servers; V100, 10Gb/s``."""
    r, s, c = prediction.result, prediction.strategy, prediction.cluster
    batch = int(s["global_batch_size"]) // r.workers
    counts = f"{r.workers} worker{'s' * (r.workers > 1)} of {batch} samples, {r.servers} server{'s' * (r.servers > 1)}"
    arithmetic = f"{s['precision']}, {s['optimizer']}{', recomputing' if Recompute.of(s['recompute']) else ''}"
    return f"{counts}; {c['device']}, {arithmetic}"


def staleness(prediction: AsyncPrediction) -> str:
    """Format the staleness: ``mean 6.1, median 7, 90 % at most 8, largest 11``."""
    r = prediction.result
    middle, most, largest = (r.staleness_quantile(share) for share in (0.5, 0.9, 1.0))
    return f"mean {number(r.mean_staleness)}, median {middle}, 90 % at most {most}, largest seen {largest}"


def limit(prediction: AsyncPrediction) -> str:
    """Name the busiest resource and its share of the time."""
    r = prediction.result
    name = "" if r.bottleneck == "workers" else f" ({r.bottleneck})"
    share = r.utilisation[r.bottleneck]
    waits = "" if share > FULL else "; else a worker's pull, compute and push wait for each other"
    return f"{r.limit}{name}, busy {percent(share)} of the time{waits}"


def beside(prediction: AsyncPrediction) -> str:
    """Describe the synchronous job and the ratio of the rates."""
    p = prediction.synchronous
    exchange = str(p.strategy["exchange"])
    servers = int(p.strategy["servers"])
    exchange_text = f"{exchange} of {servers} servers" if servers > 1 else exchange
    exchange_clause = "no exchange" if prediction.result.workers == 1 else f"over {exchange_text}"
    rate_text = f"{number(p.samples_per_s)} samples/s ({rate_range(p)}), {exchange_clause}, in step"
    return f"{rate_text}; asynchronous has {ratio(prediction.speedup)} its rate"


def _answer(prediction: AsyncPrediction) -> Iterator[Block]:
    r = prediction.result
    yield Pair("throughput", throughput(prediction))
    yield Pair("limited by", limit(prediction))
    yield Pair("staleness", f"{staleness(prediction)}; updates by others since the worker read")
    yield Pair("accuracy", NOT_KNOWN, "warning")
    yield Pair("synchronous", beside(prediction))
    yield Pair("memory", f"{memory(prediction.worker.memory_bytes)} on a worker")
    yield GAP
    yield heading("Busy:")
    yield from (Bar(name, share, (percent(share),), style="work") for name, share in r.utilisation.items())
