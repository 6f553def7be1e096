"""Entry point of the command line. Numbers go to stdout, progress and errors to stderr. A user's mistake is one line and exit
code 2."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.cli.parser import PREDICT_EXAMPLE, Parser, adder, parse
from paceline.cli.progress import Say, progress
from paceline.errors import Interrupted, NotMet, UserError, missing_extra
from paceline.exit_codes import ExitCode

if TYPE_CHECKING:
    from paceline.cli.arguments.own_words import Words
    from paceline.reporting.text.screen import Screen

COMMANDS: Mapping[str, str] = {
    "ask": "fit, speed, cost and what to do, on one screen",
    "predict": "time, bytes, memory, bottleneck of a training step",
    "memory": "memory of a training step over time, by rank",
    "plan": "the best configuration for a goal",
    "whatif": "what an upgrade gains, in time and in money",
    "explain": "what holds a training step back",
    "diagnose": "why a run is slower than it should be",
    "schedule": "many jobs on a shared cluster, simulated",
    "market": "sharing between sites: who gains what, and who would leave",
    "train": "train on local workers, predicted before and measured after",
    "slim": "a smaller network that meets a latency, a size or a loss of accuracy",
    "records": "measured steps from traces, logs and exports",
    "cluster": "your own clusters by name",
    "hardware": "what is known about devices and links",
    "workload": "what is known about networks",
    "bench": "measure Paceline itself on this machine",
    "serve": "a local page with sliders: what if",
    "report": "write report.html of a run directory",
    "validate": "error of the predictions on measured data",
    "lab": "an emulated cluster on this machine",
    "nic": "the engine of a network card that compresses",
    "completion": "a script by which bash, zsh or fish completes words",
    "help": "a command, an option, a value, a term, machines, models, files",
}
"""Every command with its line of help. ``add(parser)`` in the module of the command's name adds its arguments."""
_GUIDE = ("completion", "help")
"""Commands about the command line itself, which have their modules in ``guide``."""


@cache
def build_parser(only: str | None = None) -> Parser:
    """Build the parser of the command line. A test freezes its words.

    Args:
        only: the command that gets its arguments, so that other commands' modules are not loaded; None: every command.
    """
    parser = Parser(
        prog="paceline",
        description="Know how fast a training job will run before the hardware is there; then make it run that fast.",
        epilog=f"paceline COMMAND --help: its options. paceline help TOPIC: a word.\n\n{PREDICT_EXAMPLE}",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    add = adder(parser, "command", "COMMAND")
    for name, text in COMMANDS.items():
        command = add(name, text)
        if only in (None, name):
            import_module(f"paceline.cli.{'guide' if name in _GUIDE else 'commands'}.{name}").add(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (``ExitCode``)."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show µ gets a question mark
    try:
        return _run(given)
    except UserError as error:
        print(f"paceline: {with_options(' '.join(str(error).split()))}", file=sys.stderr)
        return ExitCode.NO if isinstance(error, NotMet) else ExitCode.MISTAKE
    except ModuleNotFoundError as error:
        if not (needed := missing_extra(error)):
            raise
        print(f"paceline: {needed}", file=sys.stderr)
        return ExitCode.MISTAKE
    except KeyboardInterrupt as error:
        print(f"paceline: {str(error) or 'interrupted'}", file=sys.stderr)
        return error.code if isinstance(error, Interrupted) else ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; the flush at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except RuntimeError as error:
        from paceline.lab import HostFailed
        from paceline.training.runs.launcher import WorkerFailed

        if not isinstance(error, WorkerFailed | HostFailed):
            raise
        print(f"paceline: {error}", file=sys.stderr)
        return error.code


def with_options(text: str) -> str:
    """Return the text of a ``UserError`` with Python arguments, `` `scale_from` ``, written as options, ``--scale-from``."""
    return re.sub(r"`([a-z]\w*)`", lambda name: "--" + name[1].replace("_", "-"), text)


def _run(given: Sequence[str]) -> int:
    """Run a command and print its answer. Raises the command's errors."""
    # The first word that is no option is the command: no option before it takes a value.
    command = next((word for word in given if not word.startswith("-")), "")
    options = parse(build_parser(command if command in COMMANDS else ""), given)
    if options.version:
        from paceline import __version__

        print(f"paceline {__version__}")
        return 0
    if not hasattr(options, "run"):
        options.parser.print_help()
        return 0
    streams = getattr(options, "streams", False) and not options.json
    # Output of a user's network stays out of the answer, unless the command exists to show it.
    with nullcontext() if streams else redirect_stdout(sys.stderr), _watched(options) as options.say:
        data, screen = options.run(options)
    if options.read_as:
        data, screen = _with_words(options.read_as, data, screen)
    if options.json:
        objects = data if isinstance(data, list) else [data]
        print("\n".join(json.dumps(_strict(o), allow_nan=False) for o in objects), flush=True)
    elif not streams:
        from paceline.cli.terminal import show

        show(screen, brief=options.brief, why=options.why)
    if isinstance(data, dict) and "exit_code" in data:
        return int(data["exit_code"])
    return ExitCode.NO if screen.missed else ExitCode.DONE


def _with_words(words: Words, data: Any, screen: Screen) -> tuple[Any, Screen]:
    """Add to an answer what was read into the words of other tools and their files."""
    from paceline.reporting.text.screen import GAP, Paragraph

    if isinstance(data, dict) and (words.notes or words.details):
        data = {**data, "read_as": {"notes": list(words.notes), "details": list(words.details)}}
    if not screen.title:  # a text for another program
        print(*words.notes, sep="\n", end="\n" if words.notes else "", file=sys.stderr)
        return data, screen
    details = [Paragraph(text) for text in words.details]
    return data, replace(screen.noting(*words.notes), why=(*screen.why, *([GAP, *details] if details else ())))


def _watched(options: argparse.Namespace) -> AbstractContextManager[Say]:
    """Return the progress display of a command, unless the command has one."""
    own = getattr(options, "streams", False) or getattr(options, "own_progress", False)
    return nullcontext(lambda words: None) if own else progress(options.parser.prog)


def _strict(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by null."""
    if isinstance(value, Mapping):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
