"""Answer of ``paceline whatif --sites``: ways to train on several sites."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from paceline.cli.arguments.failure_arguments import failures_of
from paceline.cli.arguments.prediction_inputs import Inputs
from paceline.cli.arguments.site_arguments import parse_bandwidths, parse_latency, parse_sites
from paceline.errors import UserError
from paceline.planning.compare.site_map import BANDWIDTHS, EVERY, site_map
from paceline.planning.compare.site_table import further_by_method, site_table
from paceline.prediction import StepPredictor
from paceline.reporting.text.screen import Screen
from paceline.reporting.text.site_text import map_screen, table_screen


def site_answer(
    o: argparse.Namespace, inputs: Inputs, model: StepPredictor, every: int | None, between: Mapping[str, Any]
) -> tuple[dict[str, Any], Screen]:
    """Return the map of sites and bandwidths, or the table of one place.

    Args:
        every: local steps between exchanges; None: the default.
        between: choices of the exchange between sites.

    Raises:
        UserError: options that do not go together, or as ``site_map``.
    """
    if o.change:
        raise UserError("--change and --sites are two questions", "give one of them")
    if o.worker_times:
        raise UserError("--worker-times with --sites, all of which take the same time", "leave one of them out")
    for name in ("network", "price", "upgrade_price"):
        if getattr(o, name):
            option = name.replace("_", "-")
            raise UserError(
                f"--{option} with --sites, which it does not change", "leave it out; --bandwidth is that of the sites"
            )
    if o.scaling != "strong":
        raise UserError(f"--scaling {o.scaling} with --sites, each of which keeps its batch", "leave --scaling out")
    if o.report:
        raise UserError("--sites has no page", "leave --report out; --picture FILE writes the map")
    every = EVERY if every is None else every
    if every < 2:
        raise UserError(f"--sync-every {every} with --sites, which compares local steps", "give at least 2")
    sites, workload = parse_sites(o.sites), inputs[0]
    bandwidths = parse_bandwidths(o.bandwidth) if o.bandwidth else BANDWIDTHS
    latency = parse_latency(o.latency)
    if len(sites) == len(bandwidths) == 1:
        if o.picture:
            raise UserError("a picture of one place", "give --sites 2..64 or --bandwidth 0.1..100Gb/s")
        failures = failures_of(o) if o.mtbf else None
        table = site_table(
            *inputs,
            sites=sites[0],
            bandwidth=bandwidths[0],
            sync_every=every,
            latency_s=latency,
            between=between,
            failures=failures,
            predictor=model,
        )
        return table.to_json(), table_screen(table)
    if o.mtbf:
        raise UserError("--mtbf with a map", "give one number of --sites and one --bandwidth")
    answer = site_map(
        *inputs,
        bandwidths=bandwidths,
        sites=sites,
        sync_every=every,
        latency_s=latency,
        between=between,
        predictor=model,
    )
    further = {n: further_by_method(workload, inputs[2], n, every) for n in sites}
    screen = map_screen(answer, further)
    if o.picture:
        from paceline.reporting.figures.site_figures import write_picture

        screen = screen.writing(f"picture: {write_picture(answer, further, o.picture)}")
    factors = {str(n): {name: [known.low, known.high] for name, known in of.items()} for n, of in further.items()}
    return {**answer.to_json(), "further_tokens": factors}, screen
