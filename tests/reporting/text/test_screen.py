"""Blocks at any width: nothing wider, nothing lost, no number broken, no control character."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from paceline.reporting.text.screen import (
    GAP,
    NARROWEST,
    WIDEST,
    Bar,
    Block,
    Pair,
    Paragraph,
    Screen,
    Table,
    Verbatim,
    heading,
    item,
    text_of,
    wrap,
)

WIDTHS = st.integers(NARROWEST, WIDEST)
WORDS = st.text(max_size=120) | st.sampled_from(["網路" * 30, "x" * 300, "8.80 s a step (7.10-12.0 s)", "a\nb\tc\x1b[31m"])
BLOCKS = st.one_of(
    st.builds(Paragraph, WORDS, indent=st.integers(0, 6), hang=st.integers(0, 4)),
    st.builds(Pair, WORDS, WORDS),
    st.builds(Bar, WORDS, st.floats(), st.tuples(WORDS, st.just("4.5 %"))),
    st.just(GAP),
    st.builds(
        lambda rows, notes: Table(("name", "time", "cost"), rows, frozenset({0}), [notes] * len(rows)),
        st.lists(st.tuples(WORDS, st.text(max_size=30), st.text(max_size=30)), max_size=3),
        WORDS,
    ),
)


@given(st.lists(BLOCKS, max_size=5), WIDTHS)
def test_no_line_is_wider_than_asked(blocks: list[Block], width: int) -> None:
    text = text_of(blocks, width)
    assert all(cell_len(line) <= width for line in text.split("\n"))
    assert "\x1b" not in text and "\n\n\n" not in text and not text.startswith("\n")


NUMBERS = [f"{10**k * 1.23:.3g} ms" for k in range(6)]
COLUMNS = Table(("", *"abcdef"), [(f"row {k} of a table", *NUMBERS) for k in range(3)], notes=["a note", "", ""])


@given(WIDTHS)
def test_a_table_breaks_no_number_and_loses_none(width: int) -> None:
    text = text_of([COLUMNS], width)
    assert all(text.count(number) >= 3 for number in NUMBERS) and text.count("a note") == 1
    assert max(map(len, text.splitlines())) <= width
    if width > 100:
        assert len(text.splitlines()) == 5


def test_a_number_stays_with_its_unit_and_an_address_whole() -> None:
    address = "<https://github.com/stas00/ml-engineering/blob/744d01e/compute>"
    lines = wrap(f"It takes 46 min and 64.5 GiB, see {address}.", 64)
    assert any(address in line for line in lines)
    for width in range(12, 60):
        assert not any(re.search(r"\d$", line) for line in wrap("It takes 46 min or 64.5 GiB or 92 ms.", width))


def test_pairs_share_a_column_and_bars_the_rest_of_the_width() -> None:
    text = text_of(
        [Pair("a", "1"), Pair("longer", "two three"), GAP, GAP, Bar("b", 0.5, ("4 s",)), Bar("cc", 2.0, ("40 s",))], 40
    )
    assert text.splitlines() == [
        "a       1",
        "longer  two three",
        "",
        "  b  " + "#" * 14 + " " * 15 + "   4 s",
        "  cc " + "#" * 29 + "  40 s",
    ]


SCREEN = Screen(
    title="what was asked",
    answer=(Paragraph("the answer"),),
    brief="in\none line",
    why=(heading("It rests on:"), item("a fact")),
    why_holds="1 assumption",
    alarm="DOES NOT FIT",
)


def test_an_answer_comes_first_and_provenance_when_asked() -> None:
    screen = SCREEN.noting("No batch was given.").writing("report: /a/b c/report.html")
    assert screen.text().splitlines() == [
        "DOES NOT FIT",
        "",
        "what was asked",
        "No batch was given.",
        "",
        "the answer",
        "",
        "Why: add --why (1 assumption)",
        "report: /a/b c/report.html",
    ]
    assert screen.text(why=True).splitlines()[5:] == [
        "the answer",
        "",
        "It rests on:",
        "  - a fact",
        "",
        "report: /a/b c/report.html",
    ]
    assert screen.brief_line() == "DOES NOT FIT; in one line"


def test_what_another_program_reads_is_left_as_it_is() -> None:
    options = "--one 1  \\\n    --two " + "2" * 100 + "\n"
    assert Screen.verbatim(options, "options").text(40) == options
    assert text_of([Verbatim("a\n\n  b")]) == "a\n\n  b\n"
    assert "\x1b" not in Screen.plain("done").writing("report: /a/\x1b[31m").text()


def test_a_table_without_room_for_its_columns_keeps_its_heading() -> None:
    table = Table(("is more worth it?", "speed", "range", "costs"), [("B200 instead, Nebius", "2.00x", "1.00-3.00", "$87")])
    assert text_of([table], 30).startswith("is more worth it?\nB200 instead, Nebius\n")
