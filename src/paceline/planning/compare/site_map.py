"""The fastest way to train on several sites, by the bandwidth between them and their number: ``site_map(...)``.

A site is a node of the cluster. Every site keeps its batch, so that more sites train more samples a step. The share of time
computing is the step of a site alone over the step with the others: the rest is the wait for their exchange.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.hardware import Cluster, Link, network
from paceline.hardware.device import Fact
from paceline.planning.compare.site_methods import SITE_METHODS, USUAL, SiteMethod
from paceline.planning.search.ranking import PLAIN, TIE
from paceline.prediction import ORDINARY, StepPredictor
from paceline.strategy import Strategy
from paceline.tabular import Row, Tabular
from paceline.units import format_bandwidth
from paceline.workload.table import Workload

BANDWIDTHS = tuple(1e8 / 8 * 10 ** (n / 4) for n in range(13))
"""Bytes/s of 0.1 to 100 Gb/s, four a decade."""
SITES = (2, 4, 8, 16, 32, 64)
EVERY = 30
"""Default steps between exchanges: those of the scaling laws of DiLoCo (arXiv:2503.09799) and of Covenant-72B
(arXiv:2603.08163)."""


@dataclass(frozen=True, kw_only=True)
class SiteMap(Tabular):
    """Rates of several methods on sites with one bandwidth between them.

    Attributes:
        workload: name of the network. ``site``: one site as a cluster. ``alone_s``: seconds of its step without other sites.
        site_batch: samples of a site's step. ``sync_every``: steps between exchanges of the methods with local steps.
        bandwidths: bytes/s of a site in one direction. ``sites``: numbers of sites.
        methods: the methods that were predicted.
        step_s: seconds of a step, (methods, sites, bandwidths); NaN if the method cannot run.
        fits: whether each method fits the memory of a device at the most sites.
        impossible: why a method cannot run, by its name.
    """

    workload: str
    site: Cluster
    site_batch: int
    alone_s: float
    sync_every: int
    bandwidths: tuple[float, ...]
    sites: tuple[int, ...]
    methods: tuple[SiteMethod, ...]
    step_s: Array
    fits: Mapping[str, bool]
    impossible: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def best(self) -> Ints:
        """Index of the method to take, (sites, bandwidths): the first, which changes training least, that is within ``TIE`` of
        the fastest."""
        known = np.where(np.isnan(self.step_s), np.inf, self.step_s)
        least = known.min(axis=0)
        best: Ints = (known <= least * (1 + TIE)).argmax(axis=0)
        return best

    @cached_property
    def computing(self) -> Array:
        """Share of time computing of ``best``, (sites, bandwidths)."""
        return self.computing_of(self.best)

    @property
    def most_computing(self) -> Array:
        """Share of time computing of the fastest method, (sites, bandwidths)."""
        most: Array = np.minimum(1.0, self.alone_s / np.nanmin(self.step_s, axis=0))
        return most

    def computing_of(self, method: Ints) -> Array:
        """Return the share of time computing of these methods, (sites, bandwidths). ``method``: their indices."""
        taken: Array = np.take_along_axis(self.step_s, method[np.newaxis], axis=0)[0]
        return np.minimum(1.0, self.alone_s / taken)

    def local_below(self, sites: int, samples: Mapping[str, float] | None = None) -> float:
        """Return the bandwidth below which local steps beat gradients in every step: 0 if nowhere, inf on the whole map.

        Between two bandwidths of the map the ratio of both steps is a power of the bandwidth.

        Args:
            samples: factor on the samples, by name of the local steps that count; None: 1 for all of them.
        """
        at = self.sites.index(sites)
        local = np.array([method.local for method in self.methods])
        if local.all() or not local.any():
            return math.inf if local.all() else 0.0
        known = np.where(np.isnan(self.step_s[:, at]), np.inf, self.step_s[:, at])
        factors = [1.0 if samples is None else samples.get(method.name, math.inf) for method in self.methods]
        taken = (known * np.array(factors)[:, np.newaxis])[local].min(axis=0) * (1 + PLAIN)
        gain = np.log(known[~local].min(axis=0)) - np.log(taken)
        wins = np.flatnonzero(gain > 0)
        if not len(wins):
            return 0.0
        last = int(wins[-1])
        if last + 1 == len(self.bandwidths):
            return math.inf
        share = float(gain[last] / (gain[last] - gain[last + 1]))
        low, high = self.bandwidths[last : last + 2]
        return float(low * (high / low) ** share)

    def rows(self) -> tuple[Row, ...]:
        """Return one row for each number of sites and bandwidth, with the fastest method and the rate of each method."""
        return tuple(
            {
                "sites": sites,
                "bandwidth": format_bandwidth(bandwidth),
                "fastest": self.methods[self.best[i, j]].name,
                "computing": float(self.computing[i, j]),
                **{m.name: sites * self.site_batch / float(self.step_s[k, i, j]) for k, m in enumerate(self.methods)},
            }
            for i, sites in enumerate(self.sites)
            for j, bandwidth in enumerate(self.bandwidths)
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return {
            "workload": self.workload,
            "device": self.site.device.name,
            "devices_per_site": self.site.world_size,
            "site_batch": self.site_batch,
            "alone_s": self.alone_s,
            "sync_every": self.sync_every,
            "bandwidths_bytes_per_s": list(self.bandwidths),
            "sites": list(self.sites),
            "methods": {method.name: method.title for method in self.methods},
            "step_s": [[[None if math.isnan(s) else s for s in row] for row in of.tolist()] for of in self.step_s],
            "fastest": [[self.methods[k].name for k in row] for row in self.best.tolist()],
            "computing": self.computing.tolist(),
            "fits": dict(self.fits),
            "impossible": dict(self.impossible),
        }


def site_map(
    workload: Workload,
    site: Cluster,
    strategy: Strategy,
    *,
    bandwidths: Sequence[float] = BANDWIDTHS,
    sites: Sequence[int] = SITES,
    sync_every: int = EVERY,
    latency_s: float | None = None,
    between: Mapping[str, Any] = USUAL,
    methods: Sequence[SiteMethod] = SITE_METHODS,
    predictor: StepPredictor = ORDINARY,
) -> SiteMap:
    """Predict every method on every number of sites with every bandwidth between them.

    Args:
        site: one site, a node. ``strategy``: the strategy of that site alone.
        bandwidths: bytes/s of a site in one direction.
        sync_every: steps between exchanges for the methods with local steps.
        latency_s: seconds of an empty message between two sites; None: that of a network of this speed in one room.
        between: choices of the exchange between sites. With ``parameter_server`` one site is the hub of the others.

    Raises:
        UserError: a site of several nodes, a bandwidth or number of sites out of range, a strategy with choices of local steps.
    """
    check_sites(site, strategy, bandwidths, sites)
    alone_s = predictor.step(workload, site, strategy).step_time_s
    candidates: list[tuple[Cluster, Strategy]] = []
    at: list[tuple[int, int, int]] = []
    impossible: dict[str, str] = {}
    clusters = {(n, w): site.changed(num_nodes=n, network=link_between(w, latency_s)) for n in sites for w in bandwidths}
    for k, method in enumerate(methods):
        try:
            for i, n in enumerate(sites):
                of_method = method.on_sites(strategy, n, sync_every, between)
                for j, w in enumerate(bandwidths):
                    candidates.append((clusters[n, w], of_method))
                    at.append((k, i, j))
        except UserError as error:
            impossible[method.name] = str(error)
    steps = predictor.many(workload, candidates)
    step_s, fits = np.full((len(methods), len(sites), len(bandwidths)), np.nan), np.zeros(len(methods), dtype=np.bool_)
    for index, place in enumerate(at):
        step_s[place] = steps.step_s[index]
        fits[place[0]] = steps.memory_bytes[index] <= steps.available_bytes[index]
    impossible |= {methods[at[index][0]].name: why for index, why in steps.refused.items()}
    run = [k for k, method in enumerate(methods) if method.name not in impossible]
    if not run:
        raise UserError(f"no method runs on these sites: {next(iter(impossible.values()))}", "give another network or site")
    return SiteMap(
        workload=workload.name,
        site=site,
        site_batch=strategy.global_batch_size,
        alone_s=alone_s,
        sync_every=sync_every,
        bandwidths=tuple(bandwidths),
        sites=tuple(sites),
        methods=tuple(methods[k] for k in run),
        step_s=step_s[run],
        fits={methods[k].name: bool(fits[k]) for k in run},
        impossible=impossible,
    )


def link_between(bandwidth: float, latency_s: float | None = None) -> Link:
    """Return the network between sites. ``bandwidth``: bytes/s in one direction."""
    link = network(format_bandwidth(bandwidth))
    rate = Fact(bandwidth, "given", link.bandwidth.date)
    latency = link.latency if latency_s is None else Fact(latency_s, "given", link.latency.date)
    return replace(link, bandwidth=rate, latency=latency)


def check_sites(site: Cluster, strategy: Strategy, bandwidths: Sequence[float], sites: Sequence[int]) -> None:
    """Raise UserError for arguments that no map has."""
    if site.num_nodes > 1:
        raise UserError(f"a site of {site.num_nodes} nodes", "give one node: a site is a node, and --sites counts them")
    if strategy.sync_every > 1 or strategy.gradient_exchange.compression.compresses:
        raise UserError("a map of methods with a method named", "leave compression and local steps out: the map tries them")
    if not bandwidths or min(bandwidths) <= 0 or not sites or min(sites) < 2:
        raise UserError("a map without bandwidths above 0 or without 2 sites", "give 0.1..100Gb/s and 2..64")
