"""Write ``choices.md`` from the declarations of the choices (``paceline.strategy.choices``).

    python docs/choices_page.py

A test compares the page with the declarations.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.strategy.choices.choice import RUNS, Effect, StrategyChoice
from paceline.strategy.choices.choice_values import Flag
from paceline.strategy.choices.synonyms import TOOLS, TORCHTITAN, by_tool
from paceline.strategy.strategy import CHOICES

PAGE = Path(__file__).with_name("choices.md")
HEAD = """# Choices

Look up what you can choose about a run: its option, its values, what it changes in a step, what other tools call it, and who
described it first. The command line takes their names too.

```console
$ paceline predict resnet-50 --cluster "2x8 A100, 100Gb/s" --compression int8 --bucket 50MiB
```

Python takes the same choices by name: `Strategy.of(world_size=16, global_batch_size=1024, compression="int8")`. Tables of
jobs have a column for most of them, and `paceline plan` tries several values of some.

This page is written from the declarations in `src/paceline/strategy`. After a change of one, run `python docs/choices_page.py`.
"""
PARTS = {
    "": "The step",
    "parallelism": "Division of the work",
    "gradient_exchange": "Gradient exchange",
    "local": "Local steps",
    "weight_update": "Update of the weights",
}
"""Headings of the parts of a strategy."""
EFFECTS: dict[Effect, str] = {
    "groups": "which tensors travel together",
    "exchange": "the exchange",
    "bytes": "bytes sent",
    "time": "seconds",
    "memory": "memory",
    "numerics": "computed numbers",
}
"""Effects in words."""


def page() -> str:
    """Return the text of the page."""
    sections = [HEAD]
    for part, title in PARTS.items():
        sections.append(f"## {title}\n")
        sections += ["\n".join(_lines(item)) + "\n" for item in CHOICES.values() if item.part == part]
    return "\n".join(sections)


def _lines(item: StrategyChoice) -> Iterator[str]:
    """Yield the lines of one choice."""
    yield f"### `{item.name}`\n"
    yield f"- Meaning: {'one of ' if item.help.startswith('{legal}') else ''}{item.sentence()}"
    if item.option:
        metavar = "" if isinstance(item.values, Flag) else f" {item.metavar}"
        yield f"- Option: {', '.join(f'`--{name}{metavar}`' for name in (item.option, *item.other_options))}"
    if item.column:
        yield f"- Column of a table of jobs: `{item.column}`"
    yield f"- Changes: {', '.join(EFFECTS[effect] for effect in EFFECTS if effect in item.affects)}"
    yield f"- `paceline train`: {_trained(item)}"
    if item.plan is not None:
        values = ", ".join(_text(item, value) for value in item.plan.values) or "several values"
        yield f"- `paceline plan`: {'one value for all strategies' if item.plan.single else f'tries {values}'}"
    if item.synonyms:
        yield "- Other names:"
        yield from _other_names(item)
    if item.source:
        yield f"- Source: {item.source}"


def _text(item: StrategyChoice, value: object) -> str:
    """Return a value as a user types it."""
    return str(item.values.to_argument(item.values.check(value, item.name)))


def _other_names(item: StrategyChoice) -> Iterator[str]:
    """Yield what other tools call a choice, tools with the same names on one line, and what else a command line takes."""
    tools: dict[str, list[str]] = {}
    for tool, names in by_tool(item.synonyms).items():
        dashes = "--" if tool == TORCHTITAN else ""  # a file of it has tables instead
        tools.setdefault(", ".join(f"`{dashes}{name}`" for name in names), []).append(TOOLS[tool])
    for text, titles in tools.items():
        yield f"  - {', '.join(titles)}: {text}"
    if typed := [f"`--{each.name.replace('_', '-')}`" for each in item.synonyms if not each.tools]:
        yield f"  - typed: {', '.join(typed)}"


def _trained(item: StrategyChoice) -> str:
    """Describe which values training runs."""
    if item.train.runs is RUNS.runs:
        return "runs every value"
    return "runs the default only" if item.train.runs is type(item.train)().runs else "runs some values and refuses the others"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
