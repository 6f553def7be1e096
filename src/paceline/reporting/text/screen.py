"""Blocks of a command's answer, for a terminal of any width. Only this module breaks lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import Literal

NARROWEST, USUAL_WIDTH, WIDEST = 40, 80, 200
"""Columns of an answer: minimum, maximum, and the default."""
TEXT_COLUMN = 16
"""Columns that a column of text keeps in a table; with less room each row becomes a paragraph."""
_SPACE = "\N{NO-BREAK SPACE}"
Style = Literal["", "heading", "name", "bad", "warning", "faint", "work", "wait"]
"""Role of a text, which sets its colour. A word or a mark says the same, so that nothing is lost without colour."""
Span = tuple[str, Style]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Paragraph of text; ``indent``: columns before its first line, ``hang``: further columns before the others."""

    text: str
    style: Style = ""
    indent: int = 0
    hang: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Name and value; without a value it is left out. Values of consecutive pairs are aligned in one column."""

    name: str
    value: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """Name, bar over ``share`` (0 to 1) of the width, and numbers. Consecutive bars share their columns."""

    name: str
    share: float
    numbers: tuple[str, ...]
    mark: str = "#"
    ground: str = " "
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Table with right-aligned columns of numbers, which never break, and left-aligned columns of text (``texts``: their
    indices), which wrap.

    Attributes:
        notes: a sentence below each row; empty for none.

    A cell may have several lines.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset({0})
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Picture in characters. ``draw`` returns its lines for a number of columns."""

    draw: Callable[[int], Iterable[Line]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines for another program, which are neither broken nor cut."""

    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Empty line; adjacent ones become one, and an answer neither begins nor ends with one."""


Block = Paragraph | Pair | Bar | Table | Drawing | Verbatim | Gap
GAP = Gap()


def heading(text: str) -> Paragraph:
    """Return the heading of a part of an answer."""
    return Paragraph(text, "heading")


def item(text: str) -> Paragraph:
    """Return a point of a list."""
    return Paragraph(f"- {text}", indent=2, hang=2)


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Answer of a command, as blocks.

    Attributes:
        title: the question in one sentence.
        answer: blocks that every reader needs.
        brief: the answer in one line.
        why: assumptions and sources of the answer, behind ``--why``; ``why_holds`` describes them in words.
        alarm: reason why the answer is of no use; the first line.
        missed: what the answer misses of the question, in a few words, if the answer is no; sets the exit code.
        notes: choices made automatically.
        files: lines on written files, shown last; a path is never broken.
    """

    title: str
    answer: tuple[Block, ...]
    brief: str
    why: tuple[Block, ...] = ()
    why_holds: str = ""
    alarm: str = ""
    missed: str = ""
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def plain(cls, *lines: str) -> Screen:
        """Return a screen of a few paragraphs."""
        return cls(title="", answer=tuple(map(Paragraph, lines)), brief=lines[0])

    @classmethod
    def verbatim(cls, text: str, brief: str) -> Screen:
        """Return a screen for another program."""
        return cls(title="", answer=(Verbatim(text),), brief=brief)

    def led_by(self, text: str, brief: str = "") -> Screen:
        """Return the screen with a paragraph before the answer, and an addition to the one-line answer; empty: no change."""
        lead = (Paragraph(text, "warning"), GAP) if text else ()
        return replace(self, answer=(*lead, *self.answer), brief=f"{self.brief}; {brief}" if brief else self.brief)

    def missing(self, *limits: str) -> Screen:
        """Return the screen as an answer that misses these limits; none: no change."""
        return replace(self, missed=" and ".join(limits)) if limits else self

    def noting(self, *notes: str) -> Screen:
        """Return the screen with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def writing(self, *files: str) -> Screen:
        """Return the screen with more lines on written files."""
        return replace(self, files=(*self.files, *files))

    def blocks(self, why: bool = False) -> Iterator[Block]:
        """Yield all blocks in order, with or without the assumptions."""
        if self.alarm:
            yield Paragraph(self.alarm, "bad")
            yield GAP
        if self.title:
            yield heading(self.title)
        yield from (Paragraph(note, "faint") for note in self.notes)
        yield GAP
        yield from self.answer
        yield GAP
        if why:
            yield from self.why
            yield GAP
        if self.why and not why:
            yield Paragraph(f"Why: add --why ({self.why_holds})", "faint")
        yield from map(Verbatim, self.files)

    def lines(self, width: int = USUAL_WIDTH, why: bool = False) -> list[Line]:
        """Return lines for a terminal, at most ``width`` columns wide."""
        return list(_lines(self.blocks(why), width))

    def text(self, width: int = USUAL_WIDTH, why: bool = False) -> str:
        """Return ``lines`` without colour."""
        return text_of(self.blocks(why), width)

    def brief_line(self) -> str:
        """Return the verdict, if the answer is no, and ``brief`` as one line that is never broken."""
        verdict = (self.alarm or self.missed).rstrip(".")
        return _printable(f"{verdict}; {self.brief}" if verdict else self.brief)


def text_of(blocks: Iterable[Block], width: int = USUAL_WIDTH) -> str:
    """Format blocks as plain text of at most ``width`` columns."""
    return "".join(f"{plain(line)}\n" for line in _lines(blocks, width))


def plain(line: Line) -> str:
    """Return the line without colour."""
    return "".join(text for text, _ in line).rstrip()


def _lines(blocks: Iterable[Block], width: int) -> Iterator[Line]:
    """Return the lines of all blocks, with the gaps between them."""
    gap = begun = False
    for kind, same in groupby(blocks, type):
        if kind is Gap:
            gap = begun
            continue
        for line in _of_one_kind(list(same), width):
            if kind is not Verbatim and not plain(line):
                continue
            if gap:
                yield ()
            gap, begun = False, True
            yield line


def _of_one_kind(blocks: Sequence[Block], width: int) -> Iterator[Line]:
    first = blocks[0]
    if isinstance(first, Pair):
        pairs = [(_printable(b.name), _printable(b.value), b.style) for b in blocks if isinstance(b, Pair)]
        yield from _pairs([Pair(*pair) for pair in pairs if pair[1]], width)
    elif isinstance(first, Bar):
        yield from _bars([_printable_bar(b) for b in blocks if isinstance(b, Bar)], width)
    for block in blocks:
        if isinstance(block, Paragraph) and block.text:
            indent = " " * block.indent
            yield from (((line, block.style),) for line in wrap(block.text, width, indent, indent + " " * block.hang))
        elif isinstance(block, Table):
            yield from _table(block, width)
        elif isinstance(block, Drawing):
            yield from block.draw(width)
        elif isinstance(block, Verbatim):
            yield from (((_shown(line), ""),) for line in block.text.rstrip("\n").split("\n"))


def _pairs(pairs: Sequence[Pair], width: int) -> Iterator[Line]:
    column = min(max((_cells(pair.name) for pair in pairs), default=0), width // 2) + 2
    for pair in pairs:
        names, values = wrap(pair.name, max(1, column - 2)), wrap(pair.value, width - column)
        for name, value in zip_longest(names, values, fillvalue=""):
            yield (_left(name, column), "name"), (value, pair.style)


def _bars(bars: Sequence[Bar], width: int) -> Iterator[Line]:
    names = max(_cells(bar.name) for bar in bars)
    numbers = [max(map(_cells, column)) for column in zip(*(bar.numbers for bar in bars), strict=True)]
    room = width - 2 - names - 1 - sum(2 + n for n in numbers)
    for bar in bars:
        filled = round(min(1.0, max(0.0, bar.share)) * room) if bar.share == bar.share else 0
        drawn: tuple[Span, ...] = ()
        if room >= 8:
            drawn = ((" ", ""), (bar.mark * filled, bar.style), (bar.ground * (room - filled), "faint"))
        cells = "".join(f"  {_right(text, n)}" for text, n in zip(bar.numbers, numbers, strict=True))
        line: Line = (("  " + _left(bar.name, names), ""), *drawn, (cells, ""))
        if _cells(plain(line)) <= width:
            yield line
        else:
            yield from (((part, ""),) for part in wrap(plain(line), width, "  ", "    "))


def _printable_bar(bar: Bar) -> Bar:
    return replace(bar, name=_printable(bar.name), numbers=tuple(map(_printable, bar.numbers)))


def _table(table: Table, width: int) -> Iterator[Line]:
    """Format a table as columns if they fit, else as a paragraph for each row; nothing without rows."""
    if not table.rows:
        return
    head, rows = [_printables(t) for t in table.head], [[_printables(t) for t in row] for row in table.rows]
    notes = table.notes or [""] * len(rows)
    natural = [max(_cells(line) for cell in column for line in cell) for column in zip(head, *rows, strict=True)]
    widths = _widths(natural, table.texts, width)
    if widths and any(any(cell) for cell in head):
        yield from _row(head, widths, table.texts, "heading")
    elif not widths:
        title = " ".join(head[min(table.texts, default=0)])
        yield from (((line, "heading"),) for line in wrap(title, width))
    for row, note in zip(rows, notes, strict=True):
        yield from _row(row, widths, table.texts) if widths else _record(head, row, table.texts, width)
        if note:
            yield from (((line, ""),) for line in wrap(note, width, " " * 4, " " * 4))


def _widths(natural: Sequence[int], texts: frozenset[int], width: int) -> list[int]:
    """Return the widths of a table's columns. The widest text column shrinks first; empty if there is no room."""
    widths = list(natural)
    while sum(widths) + 2 * (len(widths) - 1) > width:
        wide = [k for k in texts if widths[k] > TEXT_COLUMN]
        if not wide:
            return []
        widths[max(wide, key=lambda k: widths[k])] -= 1
    return widths


Cell = list[str]


def _row(row: Sequence[Cell], widths: Sequence[int], texts: frozenset[int], style: Style = "") -> Iterator[Line]:
    cells = [
        [part for line in cell for part in wrap(line, n)] if k in texts else cell
        for k, (cell, n) in enumerate(zip(row, widths, strict=True))
    ]
    for place in range(max(map(len, cells))):
        parts = [lines[place] if place < len(lines) else "" for lines in cells]
        padded = [(_left if k in texts else _right)(part, widths[k]) for k, part in enumerate(parts)]
        yield (("  ".join(padded).rstrip(), style),)


def _record(head: Sequence[Cell], row: Sequence[Cell], texts: frozenset[int], width: int) -> Iterator[Line]:
    """Format a row in words: its first text, then every other cell with the name of its column."""
    name, titles, cells = min(texts, default=0), [" ".join(cell) for cell in head], [" ".join(cell) for cell in row]
    yield from (((line, "name"),) for line in wrap(cells[name], width, rest="  "))
    told = [f"{title} {cell}".strip() for k, (title, cell) in enumerate(zip(titles, cells, strict=True)) if cell and k != name]
    yield from (((line, ""),) for line in wrap(", ".join(told), width, "  ", "  "))


def _printables(text: str) -> Cell:
    return [_printable(line) for line in text.split("\n")]


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Break text into lines of at most ``width`` columns. Keep numbers with units, and addresses whole if they fit a line."""
    glued = re.sub(r"(?<=\d) (?=[A-Za-zµ%$])", _SPACE, _printable(text))
    lines = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [part for line in lines or [first] for part in _folded(line.replace(_SPACE, " "), width)]


def _folded(line: str, width: int) -> list[str]:
    """Split the line if its characters take more than one column each, as East Asian ones do."""
    if _cells(line) <= width:
        return [line]
    from rich.cells import chop_cells

    return chop_cells(line, width)


def _cells(text: str) -> int:
    """Return the columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _left(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _right(text: str, width: int) -> str:
    return " " * (width - _cells(text)) + text


def _printable(text: str) -> str:
    """Return one line without control characters, because names come from users and files."""
    return _shown(" ".join(text.split()))


def _shown(text: str) -> str:
    """Return the text with a mark for each control character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
