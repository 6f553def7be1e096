"""``paceline schedule start``: when the waiting jobs of a live queue start and end."""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments.schedule_arguments import QUEUES
from paceline.cli.guide.sections import common
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.scheduling.starts.hindcast import Hindcast
    from paceline.scheduling.starts.lengths import LengthDistribution
    from paceline.scheduling.starts.start_answer import StartAnswer
    from paceline.scheduling.traces.record import LoggedJob

EXAMPLE = """example:
  paceline schedule start examples/queue/squeue.txt --nodes examples/queue/sinfo.txt --history examples/queue/sacct.txt"""
MOST_PREDICTED = 40
"""Most distinct command lines that are predicted."""
_AMOUNTS = ("--samples", "--tokens", "--epochs", "--target")
_STARTERS = ("torchrun", "accelerate", "deepspeed", "python", "paceline ask")


def add_start(start: Parser) -> None:
    """Add the arguments of ``paceline schedule start``."""
    start.runs(_start, EXAMPLE)
    queue = "what squeue, kubectl get workloads -o yaml or ray job list printed; - (standard input); slurm, kueue or ray (ask)"
    start.add_argument("queue", metavar="QUEUE", help=queue)
    common(start.add_argument("--job", metavar="NAME", default="", help="one job: why it waits, and what would start sooner"))
    new = "a job that you think of: '8 A100 for llama-3-8b 1B tokens', '2x8 A100 for 3h, limit 12h, queue gpu'"
    common(start.add_argument("--new", metavar="TEXT", default="", help=new))
    for option in add_sources(start):
        common(option)
    start.add_argument("--at", metavar="TIME", default="", help="when the queue was printed (default: as it says)")
    start.add_argument("--skipped", action="store_true", help="list the rows that were left out, with the reason")
    futures = "simulated futures (default 64; 8 to 32 where the scheduler's settings are known)"
    start.add_argument("--futures", metavar="N", type=int, default=None, help=futures)
    hindcasts = "past starts on which the 80 %% range is checked and fitted (default 100, or 0 with settings)"
    start.add_argument("--hindcasts", metavar="N", type=int, default=None, help=hindcasts)
    start.add_argument("--seed", metavar="N", type=int, default=0, help="of the draws (default 0)")


_SOURCES = (
    ("history", "FILE", "jobs that ended: what sacct -a -X -P printed; lengths and arrivals follow from them"),
    ("nodes", "FILE", "what sinfo -N -o '%%N|%%P|%%G|%%c|%%T', scontrol show node or kubectl get nodes -o yaml printed"),
    ("cluster", "C", "the nodes in words: 16x8xA100 + 4x4xV100"),
    ("queues", "FILE", f"{QUEUES}; that policy is simulated"),
)
"""Options on what is known of a live queue: name, placeholder, help. Each is a keyword of ``paceline.schedule_start``."""


def add_sources(parser: argparse.ArgumentParser, before: str = "") -> list[argparse.Action]:
    """Add the options on what is known of a live queue. ``before``: text before the help of each."""
    words = {name: (metavar, f"{before}{text}") for name, metavar, text in _SOURCES}
    return [parser.add_argument(f"--{name}", metavar=of, default="", help=text) for name, (of, text) in words.items()]


def _sources(o: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of ``paceline.schedule_start`` that these options state."""
    return {name: getattr(o, name) for name, _, _ in _SOURCES}


def _start(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.start_text import start_screen
    from paceline.scheduling.starts.verb import FEWEST, schedule_start

    if o.futures == 0:
        raise UserError("0 futures", f"give at least {FEWEST}")
    answer = schedule_start(
        o.queue,
        job=o.job,
        new=o.new,
        **_sources(o),
        now_s=moment(o.at) if o.at else None,
        futures=o.futures or 0,
        seed=o.seed,
        hindcasts=o.hindcasts,
        predict=CommandLengths(_network(o.cluster)),
        progress=lambda done, every: o.say(f"{done} of {every} futures"),
        say=o.say,
        stdin=sys.stdin.read,
    )
    return answer.to_json(), start_screen(answer, o.skipped)


def queue_asker(o: argparse.Namespace) -> Callable[[], StartAnswer]:
    """Return a function that forecasts a live queue at present, for a server. Raises UserError for one that cannot be read."""
    from paceline.scheduling.starts.verb import schedule_start

    lengths = CommandLengths(_network(o.cluster))
    kept: dict[str, Hindcast] = {}

    def ask() -> StartAnswer:
        return schedule_start(o.queue, **_sources(o), predict=lengths, kept=kept)

    if o.queue == "-":
        raise UserError("--queue - is read once", "give a file, slurm, kueue or ray")
    ask()
    return ask


def moment(text: str) -> float:
    """Return the seconds since 1970 of a time such as ``2026-11-01T09:00``. Raises UserError."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UserError(f"at {text!r}", "give a time such as 2026-11-01T09:00") from None


def _network(cluster: str) -> str:
    """Return the part of a cluster's words behind its nodes, with its comma; empty without one."""
    _, comma, network = cluster.partition(",")
    return comma + network


class CommandLengths:
    """Length of jobs from their command lines, as ``paceline ask`` predicts it. The same command is predicted once.

    Args:
        network: network between the nodes in words, as after the nodes in ``16x8xA100, 100Gb/s``; empty: unknown.
    """

    def __init__(self, network: str = "") -> None:
        self._network = network
        self._found: dict[tuple[object, ...], LengthDistribution | None] = {}

    def __call__(self, job: LoggedJob) -> LengthDistribution | None:
        """Return the length of a job; None if its command states no known network, no amount, or its device is unknown."""
        key = (job.command, job.devices, job.nodes, job.device_types)
        if key not in self._found:
            tried = sum(1 for _ in self._found)
            self._found[key] = self._predicted(job) if tried < MOST_PREDICTED else None
        return self._found[key]

    def _predicted(self, job: LoggedJob) -> LengthDistribution | None:
        if len(job.device_types) != 1:
            return None
        per_node = f"{job.nodes}x{job.devices // job.nodes}" if job.nodes > 1 else f"{job.devices}"
        machines = ["--on", f"{per_node} {job.device_types[0]}{self._network}", "--json"]
        words = job.command.split()
        if len(words) == 3 and words[1] in ("--tokens", "--samples"):
            return _asked(["ask", *words, *machines])
        if not any(starter in job.command for starter in _STARTERS):
            return None
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "job.sh"
            script.write_text(f"{job.command}\n")
            return _asked(["ask", "--from", str(script), *machines])


def _asked(words: list[str]) -> LengthDistribution | None:
    """Return the length that ``paceline ask`` tells; None if it does not fit or if no amount is stated."""
    from paceline.cli.command_line import main
    from paceline.scheduling.starts.lengths import from_range

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main(words)
    try:
        data = json.loads(out.getvalue())
    except ValueError:
        return None
    if not isinstance(data, dict) or not any(word in data.get("deeper", "") for word in _AMOUNTS):
        return None
    choice = data["choice"] if data.get("fits") else data.get("otherwise")
    if not choice:
        return None
    return from_range(choice["time_low_s"], choice["time_s"], choice["time_high_s"])
