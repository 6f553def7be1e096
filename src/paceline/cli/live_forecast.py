"""Nodes of ``paceline schedule live`` with their devices, and the predicted end times of its jobs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.parser import Parser
from paceline.errors import UserError
from paceline.units import format_seconds

if TYPE_CHECKING:
    from paceline.scheduling.executors import Executor
    from paceline.scheduling.launch import Launch
    from paceline.scheduling.live.nodes import LiveNodes
    from paceline.scheduling.live.prediction import LivePredictions
    from paceline.scheduling.live.runner import Planner, Snapshot
    from paceline.scheduling.queues.queues_file import Settings
    from paceline.scheduling.simulate.schedule import ClusterSettings
    from paceline.training.runs.training_run import TrainingRun

MACHINE = "machine.json"
"""File in the state directory with the probe of this machine."""
PREDICTED = "predicted"
"""Name of the forecast in a report, next to the policy."""


def live_nodes(o: argparse.Namespace, executor: Executor, jobs: Sequence[Launch]) -> LiveNodes:
    """Return the nodes with their devices. This machine is measured if one of the jobs may be predicted.

    Raises:
        UserError: a wrong device, network or command of a job.
    """
    from paceline.hardware.catalogue import device, is_device
    from paceline.scheduling.executors.executor import NamesDevices
    from paceline.scheduling.executors.local import LocalExecutor
    from paceline.scheduling.live.nodes import LiveNodes
    from paceline.scheduling.live.prediction import LivePredictions
    from paceline.scheduling.live.runner import first_look

    LivePredictions(LiveNodes(), training_run_of).check(jobs)  # check before measuring
    if o.device == ["none"] or (isinstance(executor, LocalExecutor) and not o.device):
        if o.network:
            raise UserError("--network says what joins nodes, and no device is named", "give --device too")
        may_be = not o.device and any(launch.is_paceline or launch.job.model for launch in jobs)
        return LiveNodes.named([_probed(o)]) if may_be else LiveNodes()
    own: dict[str, str] = {}
    there = first_look(executor)
    if isinstance(executor, NamesDevices) and (o.gpus or o.resource):
        own = {node: device(name).name for node, name in executor.device_types().items() if is_device(name)}
    nodes = LiveNodes.named(o.device or (), o.network, own)
    nodes.check_patterns([name for name, _ in there])
    return nodes


def check_decides(policy: Planner, live: Snapshot) -> None:
    """Try the policy once before any job runs. Raises UserError for jobs on which it cannot decide."""
    try:
        policy(live)
    except UserError as error:
        if "knowledge" not in error.fix:
            raise
        fix = "state its duration, or its model and samples, or choose a policy that asks for no lengths, such as las"
        raise UserError(error.message, fix) from None


def _probed(o: argparse.Namespace) -> str:
    """Return the file of a probe of this machine, written once per state directory."""
    from paceline.training.runs.launcher import probe

    file = Path(o.state) / MACHINE
    if not file.exists():
        say(f"measures this machine for predictions, once (to {file}; --device none leaves it out)")
        file.write_text(json.dumps(asdict(probe(o.slots))))
    return str(file)


def training_run_of(words: Sequence[str]) -> TrainingRun:
    """Return the training run described by the words after ``paceline train``. Raises UserError."""
    from paceline.cli.arguments.training_arguments import training_run
    from paceline.cli.commands import train

    parser = Parser(prog="paceline train")
    train.add(parser)
    return training_run(parser.parse_args(list(words)))


def say_forecast(
    live: Snapshot,
    policy: str,
    nodes: LiveNodes,
    predictions: LivePredictions,
    settings: ClusterSettings,
    queues: Settings | None = None,
) -> tuple[dict[str, float], dict[str, Any] | None]:
    """Return the predicted end of each job of ``live.rows``, in seconds of the epoch by name, and the schedule as JSON.

    Both are empty, with a message, if the work of a job is unknown or the simulator does not finish the jobs. Raises UserError
    for a policy that cannot tell the types of the nodes apart.
    """
    from paceline.scheduling.live.forecast import forecast
    from paceline.scheduling.live.nodes import UNKNOWN
    from paceline.scheduling.policies.registry import check_types
    from paceline.scheduling.simulate.saved import to_json

    fleet, _ = nodes.fleet(dict(live.nodes))
    check_types(policy, len(fleet.groups))
    whys = predictions.unpredicted(live.rows, fleet)
    try:
        expected = forecast(live.rows, live, policy, fleet, predictions, settings, queues)
    except UserError as error:
        say(f"completions are predicted once jobs report: {error.message}")
        return {}, None
    if expected is None:
        name, why = next(iter(whys.items()), ("", "the work of a job is unknown"))
        stated = "" if UNKNOWN in fleet.types else "; state its model and samples, or its duration"
        say(f"completions are predicted once jobs report: {f'job {name}: ' if name else ''}{why}{stated}")
        return {}, None
    turned_away = [outcome.job.name for outcome in expected.simulated.schedule.outcomes if outcome.removed]
    away = (
        f"{policy} would turn away {', '.join(turned_away[:3])}{' and others' * (len(turned_away) > 3)}" if turned_away else ""
    )
    if math.isfinite(expected.last_s[0]):
        last, soonest, latest = map(format_seconds, expected.last_s)
        mean = format_seconds(expected.simulated.metrics.mean_jct_s)
        span = f" ({soonest} to {latest})" if soonest != latest else ""
        away = f"; {away}" if away else ""
        say(f"predicted: the last job ends after {last}{span}; completion {mean} in the mean{away}")
    else:
        say(f"predicted: {away}")
    ends = {outcome.job.name: expected.start_s + outcome.end_s for outcome in expected.simulated.schedule.outcomes}
    return {name: end_s for name, end_s in ends.items() if math.isfinite(end_s)}, to_json({PREDICTED: expected.simulated})


def say(text: str) -> None:
    """Print a line about an event to stderr."""
    print(text, file=sys.stderr, flush=True)
