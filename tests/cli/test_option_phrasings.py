"""Options as people type them are understood, or refused with what to write instead (``option_phrasings.toml``)."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

from paceline.cli.command_line import build_parser, with_options
from paceline.cli.parser import parse
from paceline.errors import UserError

PHRASINGS = tomllib.loads(Path(__file__).with_name("option_phrasings.toml").read_text())
QUESTION = ["predict", "llama-3-8b", "--cluster", "2x8 H100, 400Gb/s"]
REFUSED = "no: "


def wrong(typed: str, expected: str) -> str:
    """Return the difference from the expected options; empty without one."""
    try:
        options = vars(parse(build_parser("predict"), [*QUESTION, *shlex.split(typed)]))
    except UserError as error:
        said = with_options(str(error))
        right = expected.startswith(REFUSED) and expected.removeprefix(REFUSED) in said and "\n" not in said
        return "" if right else f"{typed}: {said}"
    if expected.startswith(REFUSED):
        return f"{typed}: is taken"
    wanted = dict(pair.partition("=")[::2] for pair in shlex.split(expected))
    found = {name: str(options[name]) for name in wanted}
    return "" if found == wanted else f"{typed}: {found}"


def test_options_of_other_tools() -> None:
    cases = [case for section in PHRASINGS.values() for case in section.items()]
    misses = list(filter(None, (wrong(*case) for case in cases)))
    assert len(cases) > 240 and not misses, "\n".join(misses)


def test_options_without_effect_are_named_together() -> None:
    typed = "--learning_rate 2e-5 --output_dir out --seed 3"
    said = wrong(typed, "")
    assert "unknown options --learning_rate, --seed; leave out what changes the learning" in said
    assert "unknown option --output_dir; leave out files" in wrong("--output_dir out", "")
