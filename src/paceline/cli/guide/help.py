"""``paceline help``: describe a command, an option, a value, a term or a subject."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Verbatim, heading

EXAMPLE = """example:
  paceline help precision
  paceline help exit-codes"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline help``."""
    parser.runs(_help, EXAMPLE, shapes=BRIEF)
    kinds = "a command, an option, a value, a term, machines, networks, models, files, prices or exit-codes (default: a list)"
    parser.add_argument("topic", metavar="TOPIC", nargs="*", help=kinds)


def _help(o: argparse.Namespace) -> Answer:
    from paceline.cli.command_line import COMMANDS, build_parser
    from paceline.cli.guide.topics import find, listed

    if not o.topic:
        pairs = list(listed(COMMANDS))
        screen = Screen(
            title="paceline help TOPIC describes one of these:",
            answer=tuple(Pair(*pair) for pair in pairs),
            brief=", ".join(name for name, _ in pairs),
        )
        return dict(pairs), screen
    found = find(" ".join(o.topic), build_parser())
    blocks: list[Block] = []
    for topic in found:
        blocks += [GAP, *_blocks(topic.kind, topic.name, topic.text, topic.facts)]
    screen = Screen(title="", answer=tuple(blocks), brief=f"{found[0].name}: {found[0].text.splitlines()[0]}")
    return {"topics": [asdict(topic) for topic in found]}, screen


def _blocks(kind: str, name: str, text: str, facts: tuple[tuple[str, str], ...]) -> Iterator[Block]:
    """Yield the blocks of one topic."""
    if kind == "command":
        yield Verbatim(text)
        return
    yield heading(text if kind == "subject" else f"{'--' if kind == 'option' else ''}{name}, {_article(kind)}")
    if kind != "subject":
        yield Paragraph(text.replace("`", ""))
    for first, second in facts:
        yield Pair(first, second) if first else Paragraph(second)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
