"""Table and sentences of docs/slim.md on promises, from rows of ``slim_promises.py``. Nothing here measures."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Row = Mapping[str, Any]
WITHIN, OVER = 0.15, 0.05
"""The promises: largest error of a predicted latency, and largest distance of the measured one from the budget."""
SMALL, TOKENS = "lstm-small", "tokens"
"""Sources of the tries with a small LSTM, and of language models."""
FIRST, NEXT = "- Promises (", "- Reach:"
"""How the page's part begins, and the part after it."""
ROWS = "[rows](../benchmarks/results/slim_promises.csv)"
HEADER = (
    "| from | networks | no figures | median error | within 15 % | over budget, median | within 5 % of it | up to 5 % over |",
    "|---|---|---|---|---|---|---|---|",
)
FAILURES: Mapping[str, Callable[[str], bool]] = {
    "No budget of these can be met for": lambda why: "cannot be met" in why,
    "No file is exported of": lambda why: "cannot be exported" in why,
    "All is output, so that nothing can go, in": lambda why: "nothing that could be removed" in why,
    "Other errors end": lambda why: True,
}
"""Beginnings of sentences on rows without figures, and the reasons that they are of. The first that holds counts."""


def last_of_each(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each architecture."""
    return list({row["architecture"]: row for row in rows}.values())


def section(rows: Iterable[Row], names: Collection[str]) -> str:
    """Return the page's part: sentences, the table, and what has no figures.

    Args:
        names: all architectures, also those without a row.
    """
    every = last_of_each(rows)
    tries, language = ([row for row in every if row["from"] == source] for source in (SMALL, TOKENS))
    networks = [row for row in every if row["from"] not in (SMALL, TOKENS)]
    made, timed = _made(every), _timed(every)
    met, near, median_over = _kept(timed)
    others = [f"{len(tries)} tries with a small LSTM"] * bool(tries) + [f"{len(language)} of language models"] * bool(language)
    tried = "".join(f" and {each}" for each in others)
    budgets = ["the LSTM: 3x"] * bool(tries) + ["language models: 1.5x"] * bool(language)
    asked = "slimmed to the first of 2x, 1.5x, 1.2x and 1.1x" + f" ({', '.join(budgets)})" * bool(budgets)
    load = f"at a load of {median(row['load'] for row in every):.0f} in the median"
    good = f"The predicted latency was within 15 % in {_good(made)} of {len(made)} with figures, {_unsigned(_error(made))} off"
    untimed = f" (rows without it: {len(made) - len(timed)})" * (len(timed) < len(made))
    kept = f"{near} of {len(timed)} were within 5 % of the budget, and {met} at most 5 % over it"
    rest = f"{len(timed) - met} missed it, {met - near} became smaller than asked by more than 5 %"
    lines = [
        f"{FIRST}{ROWS}): {len(networks)} networks of `slim_reach.py`{tried}, {asked} that can be met, without training,",
        f"  {load}. {good} in the median.",
        f"  In a fresh process by its own clock{untimed}, {kept}: {rest}. The median is {_percent(median_over)}.",
        *_failed(networks),
        *_not_run(networks, names),
        *_small_lstm(tries),
        *_language(language),
        "",
        *table(every),
        "\n",
    ]
    return "\n".join(lines)


def table(rows: Iterable[Row]) -> list[str]:
    """Return a row for each source of networks, and one for all."""
    every = last_of_each(rows)
    lines = list(HEADER)
    for source in [*dict.fromkeys(row["from"] for row in every), "all"]:
        own = [row for row in every if source in (row["from"], "all")]
        made, timed = _made(own), _timed(own)
        cells = [source, str(len(own)), str(len(own) - len(made))]
        cells += [_unsigned(_error(made)), str(_good(made))] if made else ["-", "-"]
        met, near, median_over = _kept(timed)
        cells += [_percent(median_over), f"{near} of {len(timed)}", f"{met} of {len(timed)}"] if timed else ["-", "-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def misses(rows: Iterable[Row]) -> list[str]:
    """Return a line for each row that breaks a promise, or that has no figures."""
    lines = []
    for row in last_of_each(rows):
        if not _made([row]):
            lines.append(f"{row['architecture']}: {_plain(row['why'])}")
        elif abs(row["error"]) > WITHIN or (_timed([row]) and abs(row["over"]) > OVER):
            over = f", over {_percent(row['over'])}" if _timed([row]) else ""
            spread = f"{row['low']} to {row['high']}"
            lines.append(f"{row['architecture']}: {row['budget']}, error {_percent(row['error'])}{over} ({spread})")
    return lines


def renew(page: Path, rows: Iterable[Row], names: Collection[str]) -> None:
    """Write the part into its place on the page."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), section(rows, names)), encoding="utf-8")


def replaced(text: str, part: str) -> str:
    """Return a page with another part."""
    start = text.index(FIRST)
    return text[:start] + part + text[text.index(NEXT, start) :]


def _made(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["error"] != ""]


def _timed(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the other clock."""
    return [row for row in rows if row["over"] != ""]


def _good(made: Sequence[Row]) -> int:
    return sum(abs(row["error"]) <= WITHIN for row in made)


def _error(made: Sequence[Row]) -> float:
    return median(abs(row["error"]) for row in made)


def _kept(timed: Sequence[Row]) -> tuple[int, int, float]:
    """Return how many rows are at most 5 % over the budget, how many within 5 % on both sides, and the signed median."""
    over = [row["over"] for row in timed]
    return sum(each <= OVER for each in over), sum(abs(each) <= OVER for each in over), median(over) if over else 0.0


def _failed(networks: Sequence[Row]) -> list[str]:
    failed, sentences = [row for row in networks if not _made([row])], []
    for beginning, holds in FAILURES.items():
        own = [row for row in failed if holds(row["why"])]
        failed = [row for row in failed if row not in own]
        if own:
            sentences.append(f"{beginning} {len(own)}: {', '.join(row['architecture'] for row in own)}.")
    return [f"  {' '.join(sentences)}"] if sentences else []


def _not_run(networks: Sequence[Row], names: Collection[str]) -> list[str]:
    run = {row["architecture"] for row in networks}
    missing = [name for name in names if name not in run]
    if not missing:
        return []
    some = ", ".join(missing) if len(missing) <= len(run) else f"{len(missing)} of {len(names)}"
    return [f"  Not run: {some}."]


def _small_lstm(tries: Sequence[Row]) -> list[str]:
    made, timed = _made(tries), _timed(tries)
    if not made or not timed:
        return []
    whole, over = [1e3 * row["whole_ms"] for row in made], [row["over"] for row in timed]
    met, near, _ = _kept(timed)
    kept = f"{near} of {len(timed)} tries were within 5 % of the budget, {met} at most 5 % over it"
    spread = f"all from {_percent(min(over))} to {_percent(max(over))}"
    error = f"Predicted within {_unsigned(max(abs(row['error']) for row in made))}."
    return [f"- The small LSTM takes {min(whole):.0f} to {max(whole):.0f} µs: {kept}, {spread}. {error}"]


def _language(rows: Sequence[Row]) -> list[str]:
    """Return a line for the time of a token, one for that of a prompt."""
    lines = []
    for phase, what in (("decode", "The time of a token"), ("prefill", "The time of a prompt")):
        own = [row for row in rows if row["budget"].startswith(phase)]
        made, timed = _made(own), _timed(own)
        if made and timed:
            met, near, median_over = _kept(timed)
            names = ", ".join(dict.fromkeys(row["architecture"].partition(" ")[0] for row in own))
            basis = "predicted by the layers' times, corrected on the way,"
            error = f"{basis} within 15 % in {_good(made)} of {len(made)}, {_unsigned(_error(made))} off"
            kept = f"{near} of {len(timed)} within 5 % of the budget, {met} at most 5 % over it, {_percent(median_over)}"
            lines.append(f"- {what} ({names}, with free and equal widths): {error} in the median; {kept} in the median.")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _unsigned(share: float) -> str:
    return f"{100 * share:.1f} %"


def _plain(text: str) -> str:
    """Return a text without the marks of a terminal."""
    return re.sub(r"\x1b?\[\d+m", "", text)
