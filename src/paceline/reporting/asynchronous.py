"""An asynchronous job as text: throughput, what limits it, staleness, and the synchronous job beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from paceline.planning.asynchronous import AsyncPrediction
from paceline.reporting.values import clean, memory, number, percent, rate_range, ratio

WIDTH = 80
BAR = 40
FULL = 0.7
"""Share of the time from which on a resource is what all wait for."""
NOT_KNOWN = "what staleness costs is unknown: not measured, and not taken to be zero"


def asynchronous_text(found: AsyncPrediction) -> str:
    """The whole answer; no line is wider than 80 columns."""
    return "\n".join(_lines(found)) + "\n"


def subtitle(found: AsyncPrediction) -> str:
    """``8 workers of 32 samples each, 2 servers; V100, 10Gb/s``."""
    r, s, c = found.result, found.strategy, found.cluster
    batch = int(s["global_batch_size"]) // r.workers
    many = f"{r.workers} worker{'s' * (r.workers > 1)} of {batch} samples, {r.servers} server{'s' * (r.servers > 1)}"
    how = f"{s['precision']}, {s['optimizer']}{', recomputing' if s['recompute'] else ''}"
    return f"{many}; {c['device']}, {how}"


def staleness(found: AsyncPrediction) -> str:
    """``mean 6.1, median 7, 90 % at most 8, largest 11``."""
    r = found.result
    middle, most, largest = (r.staleness_quantile(share) for share in (0.5, 0.9, 1.0))
    return f"mean {number(r.mean_staleness)}, median {middle}, 90 % at most {most}, largest seen {largest}"


def limit(found: AsyncPrediction) -> str:
    """What works most of the time, and how much of it."""
    r = found.result
    own = "" if r.bottleneck == "workers" else f" ({r.bottleneck})"
    share = r.utilisation[r.bottleneck]
    waits = "" if share > FULL else "; else a worker's pull, compute and push wait for each other"
    return f"{r.limit}{own}, busy {percent(share)} of the time{waits}"


def beside(found: AsyncPrediction) -> str:
    """The synchronous job and the ratio of their rates."""
    p = found.synchronous
    way = str(p.strategy["exchange"])
    many = int(p.strategy["servers"])
    place = f"{way} of {many} servers" if many > 1 else way
    alone = "nobody to exchange with" if found.result.workers == 1 else f"over {place}"
    own = f"{number(p.samples_per_s)} samples/s ({rate_range(p)}), {alone}, in step"
    return f"{own}; asynchronous has {ratio(found.speedup)} its rate"


def _lines(found: AsyncPrediction) -> Iterator[str]:
    r = found.result
    if found.headline:
        yield from (*textwrap.wrap(found.headline, WIDTH), "")
    yield f"{clean(found.workload, 40)}, asynchronous SGD with parameter servers, predicted"
    yield from (*textwrap.wrap(subtitle(found), WIDTH), "")
    spread = f"{number(r.low_samples_per_s)}-{number(r.high_samples_per_s)}"
    for name, value in (
        ("throughput", f"{number(r.samples_per_s)} samples/s ({spread}, 80 % range), {number(r.updates_per_s)} updates/s"),
        ("limited by", limit(found)),
        ("staleness", f"{staleness(found)}; updates by others since the worker read"),
        ("accuracy", NOT_KNOWN),
        ("synchronous", beside(found)),
        ("memory", f"{memory(found.worker.memory_bytes)} on a worker"),
    ):
        yield from textwrap.wrap(value, WIDTH, initial_indent=f"{name:<16}", subsequent_indent=" " * 16)
    yield from ("", "busy")
    for name, share in r.utilisation.items():
        yield f"  {name:<20}{'#' * round(min(1.0, share) * BAR):<{BAR}}{percent(share):>10}"
    yield from ("", "It rests on:")
    for sentence in found.assumptions:
        yield from textwrap.wrap(clean(sentence, 1000), WIDTH, initial_indent="  - ", subsequent_indent="    ")
