"""Content of a file of jobs: a table, JSON or YAML objects, or numbers in columns. Its first lines say which."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError, shorten, shown
from paceline.scheduling.traces.record import SkippedRow

_YAML_KEY = re.compile(r"^(?:- )?(?:apiVersion|kind|items|metadata):", re.MULTILINE)
_SPACED = re.compile(r"\S+")
_DASHES = re.compile(r"^-+(?: +-+)*\s*$")
_TRES = re.compile(r"^(?:billing|cpu|energy|fs/\w+|gres/[\w:.-]+|license/\w+|mem|node|pages|vmem)=")
_FULL = re.compile(r"^(?:gres[/:]|gpu[:=]|cpu=|billing=|mem=|node=)")
_COUNTED = re.compile(r"(?:^|[/,])gpu(?::[\w.-]*[A-Za-z][\w.-]*)?:\d+(?:\(.*)?$")
"""Beginning of a list of devices, and one whose last entry is complete: ``gres/gpu:a100:4``."""
_CLUSTER = re.compile(r"^CLUSTER: (\S+)$")
_MOST_QUOTED = 100
"""Most lines of one quoted cell. A quotation that is open for longer was never closed."""
WRONG_COUNT = "had another number of values than the header"


@dataclass(frozen=True)
class TextTable:
    """TextTable of a text file.

    Attributes:
        header: columns. ``delimiter``: what separates them; a blank for columns of fixed width.
        lines: (number in the file, line) below the header.
        widths: first and last position of each column of fixed width. ``cuts``: True if columns may touch, as
            those of ``squeue -O``. ``dashed``: True if dashes state the widths, as sacct does, which marks what it cuts off.
        where: values by column. Other rows are not returned.
    """

    header: tuple[str, ...]
    delimiter: str
    lines: tuple[tuple[int, str], ...]
    file: str
    widths: tuple[tuple[int, int], ...] = ()
    cuts: bool = False
    dashed: bool = False
    where: Mapping[str, str] = field(default_factory=dict)

    def rows(self, header: Sequence[str] = ()) -> tuple[list[Row], list[SkippedRow]]:
        """Return the rows, and those that do not have a value for each column.

        Args:
            header: other names of the columns. The file's header is then a row.
        """
        names = list(header or self.header)
        rows: list[Row] = []
        skipped: list[SkippedRow] = []
        for count, (line, values) in enumerate(self._values(), start=1):
            if len(values) == len(names) + 1 and not values[-1].strip():
                values = values[:-1]  # a bar ends each line of sacct -p
            if len(values) > len(names) and self.delimiter == ",":
                values = _with_tres(values, len(names))
            if len(values) != len(names):
                place = f"{self.file}, row {count} (line {line})"
                detail = f"{len(values)} values for {len(names)} columns"
                skipped.append(SkippedRow(place, values[0].strip()[:40] if values else "", WRONG_COUNT, detail))
                continue
            row = Row(dict(zip(names, values, strict=True)), count, line, self.file)
            if all(row.text(column) == value for column, value in self.where.items()):
                rows.append(row)
        return rows, skipped

    def _values(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the values of each row."""
        if self.delimiter == " ":
            for number, line in self.lines:
                yield number, self._cells(line)
        elif self.delimiter == "|":
            for number, line in self.lines:
                yield number, line.split("|")
        else:
            yield from self._quoted()

    def _quoted(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows of a CSV. A cell in quotation marks may hold line breaks."""
        index = 0
        while index < len(self.lines):
            number, text = self.lines[index]
            index += 1
            last = index
            while text.count('"') % 2 and last < min(len(self.lines), index + _MOST_QUOTED):
                text += "\n" + self.lines[last][1]
                last += 1
            if text.count('"') % 2:
                yield number, [self.lines[index - 1][1]]
                continue
            index = max(index, last)
            try:
                yield from ((number, values) for values in csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter))
            except csv.Error:
                yield number, [text]

    def _cells(self, line: str) -> list[str]:
        """Split a line of columns of fixed width. The last column may hold blanks.

        A list of devices that fills its column and may go on ends with a plus, as sacct marks it.
        """
        if not self.widths:
            return line.split(None, len(self.header) - 1)
        last = self.widths[-1]
        ends = [*self.widths[:-1], (last[0], max(last[1], len(line)))]
        if not self.cuts and not all(end >= len(line) or line[end] == " " for _, end in ends[:-1]):
            return line.split(None, len(self.header) - 1)
        cells = [line[start:end].strip() for start, end in ends]
        full = [at for at, (start, end) in enumerate(self.widths) if len(cells[at]) >= end - start - (not self.cuts)]
        for at in full if self.cuts or not self.dashed else ():
            if _FULL.match(cells[at]) and not _COUNTED.search(cells[at]):
                cells[at] += "+"
        return cells


@dataclass(frozen=True)
class JobFile:
    """Decoded content of a file.

    Attributes:
        name: name of the file, for errors. ``folder``: its folder, in which a second table of a trace may lie.
        is_whole: False if bytes that are no UTF-8 were replaced.
    """

    text: str
    name: str
    folder: Path | None = None
    is_whole: bool = True
    lines: tuple[str, ...] = field(default=(), repr=False)
    where: Mapping[str, str] = field(default_factory=dict)

    def selecting(self, where: Mapping[str, str]) -> JobFile:
        """Return the source with only the rows of its table that have these values."""
        return replace(self, where=where)

    @classmethod
    def read(cls, path: str | Path) -> JobFile:
        """Read a file, which may be compressed by gzip. Raises UserError if it cannot be read or is empty."""
        try:
            data = Path(path).read_bytes()
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "give a file of jobs") from None
        except ValueError as error:  # a path with a zero byte
            raise UserError(f"cannot read {shown(str(path))}: {error}", "give a file of jobs") from None
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        try:
            text, is_whole = data.decode(encoding), True
        except UnicodeDecodeError:
            text, is_whole = data.decode(encoding, errors="replace"), False
        return cls.of(text, Path(path).name, Path(path).absolute().parent, is_whole)

    @classmethod
    def of(cls, text: str, name: str, folder: Path | None = None, is_whole: bool = True) -> JobFile:
        """Return the source of a text. Raises UserError if it is empty."""
        if not text.strip():
            raise UserError(f"{name} is empty", "give a file of jobs")
        lines = tuple(text.splitlines())
        if clusters := [found[1] for line in lines if (found := _CLUSTER.match(line.strip()))]:  # squeue -M and sinfo -M
            if len(clusters) > 1:
                raise UserError(
                    f"{name} lists {len(clusters)} clusters ({shorten(', '.join(clusters), 60)})",
                    "print one of them, as with -M " + clusters[0],
                )
            lines = tuple(line for line in lines if not _CLUSTER.match(line.strip()))
            text = "\n".join(lines)
        return cls(text, name, folder, is_whole, lines)

    @cached_property
    def objects(self) -> list[Any] | None:
        """JSON or YAML documents; None if the file is neither. Raises UserError for a damaged document."""
        start = self.text.lstrip()[:1]
        if start in ("{", "["):
            return _json_documents(self.text, self.name)
        if "|" in self.lines[0] or not _YAML_KEY.search(self.text[:4096]):
            return None
        import yaml  # type: ignore[import-untyped]  # only where a file is read

        try:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            return [each for each in yaml.load_all(self.text, Loader=loader) if each is not None]
        except yaml.YAMLError as error:
            where = getattr(error, "problem_mark", None)
            raise UserError(
                f"{self.name} is damaged YAML{f', line {where.line + 1}' if where else ''}", "print it again with -o yaml"
            ) from None

    @cached_property
    def table(self) -> TextTable | None:
        """TextTable with its header; None for objects."""
        return None if self.objects is not None else replace(self._table(), where=self.where)

    def _table(self) -> TextTable:
        filled = [(number, line) for number, line in enumerate(self.lines, start=1) if line.strip()]
        first = filled[0][1]
        counts = {sign: first.count(sign) for sign in ("|", "\t", ",", ";")}
        delimiter = max(counts, key=lambda sign: counts[sign]) if any(counts.values()) else " "
        if delimiter == " ":
            return self._spaced(filled)
        header = next(
            csv.reader([first], delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL)
        )
        if delimiter == "|" and not header[-1].strip():
            header = header[:-1]
        return TextTable(tuple(column.strip() for column in header), delimiter, tuple(filled[1:]), self.name)

    def _spaced(self, filled: list[tuple[int, str]]) -> TextTable:
        """Return the table of columns of fixed width. Dashes below the header, or the header itself, give the widths."""
        for index, (_, line) in enumerate(filled[:3]):
            if index + 1 < len(filled) and _DASHES.match(filled[index + 1][1]):
                spans = [found.span() for found in re.finditer(r"-+", filled[index + 1][1])]
                words = line.split()
                header = tuple(words if len(words) == len(spans) else (line[start:end].strip() for start, end in spans))
                return TextTable(header, " ", tuple(filled[index + 2 :]), self.name, tuple(spans), dashed=True)
        start = 1 if len(filled) > 1 and "JOBID" in filled[1][1].split() and "JOBID" not in filled[0][1].split() else 0
        found = list(_SPACED.finditer(filled[start][1]))
        header = tuple(word.group() for word in found)
        lines = tuple(filled[start + 1 :])
        if widths := _left_aligned([word.span() for word in found], [line for _, line in lines]):
            return TextTable(header, " ", lines, self.name, widths, cuts=True)
        ends = [word.end() for word in found]
        return TextTable(header, " ", lines, self.name, tuple(zip([0, *ends[:-1]], ends, strict=True)))


def _left_aligned(words: Sequence[tuple[int, int]], lines: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the columns of fixed width that begin where the words of the header do; empty if some cell begins elsewhere.

    ``squeue -O`` prints them without blanks between full columns. Columns of free width have one blank between all words.
    """
    starts = [start for start, _ in words]
    if starts[0] or not lines or all(start - end == 1 for (_, end), (start, _) in itertools.pairwise(words)):
        return ()
    widths = tuple(zip(starts, [*starts[1:], max(map(len, lines))], strict=True))
    cells = (line[start:end] for line in lines for start, end in widths)
    return () if any(cell[:1] == " " and cell.strip() for cell in cells) else widths


def _json_documents(text: str, name: str) -> list[Any]:
    """Return the JSON values of a text: one, or one after the other."""
    decoder, values, at = json.JSONDecoder(), [], 0
    try:
        while at < len(text):
            found = re.compile(r"\s*").match(text, at)
            at = found.end() if found else at
            if at >= len(text):
                break
            value, at = decoder.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, getattr(error, "pos", at)) + 1
        raise UserError(f"{name} is damaged JSON, line {line}", "print it again") from None
    return values


def _with_tres(values: list[str], count: int) -> list[str]:
    """Return the values of a row with a list of TRES in one cell, whose commas nothing quotes."""
    surplus = len(values) - count
    first = next((at for at, value in enumerate(values) if _TRES.match(value)), len(values))
    cells = values[first : first + surplus + 1]
    if len(cells) <= surplus or not all(map(_TRES.match, cells)):
        return values
    return [*values[:first], ",".join(cells), *values[first + surplus + 1 :]]


def texts(value: Mapping[str, Any], *keys: str) -> str:
    """Return the text at nested keys of an object; empty if it is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            return ""
        value = value.get(key)  # type: ignore[assignment]
    return "" if value is None or isinstance(value, Mapping | list) else str(value)
