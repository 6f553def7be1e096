"""``paceline completion``: a script by which bash, zsh or fish completes commands, options and their values."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Mapping

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.errors import known_name
from paceline.reporting.text.screen import Screen

WIDTH = 70
"""Most characters of a description next to a word."""
SHELLS = ("bash", "zsh", "fish")
EXAMPLE = """example:
  paceline completion bash"""
_BETWEEN_NODES = ("ethernet", "infiniband")
_WHERE = {
    "bash": 'eval "$(paceline completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(paceline completion zsh)" in ~/.zshrc, after compinit',
    "fish": "paceline completion fish > ~/.config/fish/completions/paceline.fish",
}


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline completion``."""
    parser.runs(_completion, EXAMPLE, shapes=BRIEF)
    parser.add_argument("shell", metavar="SHELL", help=f"bash, zsh or fish: {'; '.join(_WHERE.values())}")


def _completion(o: argparse.Namespace) -> Answer:
    shell = known_name("shell", o.shell, SHELLS)
    text = script(shell)
    return {"shell": shell, "script": text}, Screen.verbatim(text, _WHERE[shell])


def script(shell: str) -> str:
    """Return the script for a shell, written by shtab from the parsers of all commands."""
    import shtab

    from paceline.cli.command_line import build_parser

    parser = build_parser.__wrapped__(None)  # another parser: these values are not for parsing
    _add_values(parser, legal_values())
    text: str = shtab.complete(parser, shell)
    return text


def legal_values() -> Mapping[str, Iterable[str]]:
    """Return the legal values by the name of an option or an operand. Names with spaces have dashes, which are read as such."""
    from paceline.calibration import attention
    from paceline.cli.arguments.prediction_arguments import CARDS, SWITCHES
    from paceline.hardware import devices, instances, links
    from paceline.planning.emit.targets import TARGETS
    from paceline.scheduling.policies.registry import POLICIES
    from paceline.strategy.frameworks import FRAMEWORKS
    from paceline.strategy.strategy import CHOICES
    from paceline.workload import names

    machines = [*(device.name for device in devices()), *(instance.name for instance in instances())]
    every: dict[str, Iterable[str]] = {
        item.dest: tuple(map(str, item.values.names)) for item in CHOICES.values() if item.option and item.values.names
    }
    every |= dict.fromkeys(("device", "server_device", "cluster", "on"), machines)
    return every | {
        "workload": names(),
        "network": [link.name for link in links() if link.kind in _BETWEEN_NODES],
        "framework": tuple(FRAMEWORKS),
        "attention": tuple(attention.KERNELS),
        "emit": tuple(TARGETS),
        "goal": ("fastest", "cheapest", "deadline=", "budget="),
        "policy": tuple(POLICIES),
        "nic": CARDS.split(", "),
        "aggregation": SWITCHES.split(", "),
        "shell": SHELLS,
    }


def _add_values(parser: argparse.ArgumentParser, values: Mapping[str, Iterable[str]]) -> None:
    """Give the legal values to the options of a parser and of its commands, and files to options that take them."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _add_values(command, values)
            continue
        action.help = textwrap.shorten(str(action.help or ""), WIDTH, placeholder=" ...")
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            continue
        if named := values.get(action.dest):
            action.choices = [name.replace(" ", "-") for name in named]
        elif "FILE" in (form := str(action.metavar)) or form.endswith((".csv", ".toml")):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif "DIR" in form:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
