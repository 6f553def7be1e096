"""Rows of a file: what is written is read, and every mistake is one line with the file, the row and the column."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.csv_rows import Row, header, read
from paceline.errors import UserError

CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "jobs.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def row(text: str) -> Row:
    return Row({"a": text}, 3, 5, "jobs.csv")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_what_a_writer_writes_is_read(tmp_path: Path, cells: list[tuple[str, str]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([("a", " b "), *cells])
    rows = read(write(tmp_path, stream.getvalue()), ["a", "b"])
    assert [(r.text("a"), r.text("b")) for r in rows] == [(a.strip(), b.strip()) for a, b in cells]
    assert [r.number for r in rows] == list(range(1, len(cells) + 1)) and [r.line for r in rows] == [r.number + 1 for r in rows]


def test_a_byte_order_mark_empty_lines_and_more_columns_do_not_matter(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, b"\xef\xbb\xbfa,more\n1,x\n\n2,y\n"), ["a"])
    assert (first.text("a"), first.text("more"), first.text("absent")) == ("1", "x", "")
    assert (second.number, second.line, second.file) == (2, 4, "jobs.csv")


@given(st.floats(0, 1e300))
def test_a_number_from_0_up_is_read(value: float) -> None:
    assert row(f" {value!r} ").number_of("a") == value and row(repr(value)).positive("a") == (value or None)


@given(st.integers(0, 10**15))
def test_a_whole_number_may_be_written_as_a_decimal(value: int) -> None:
    assert row(str(value)).whole("a") == row(f"{value}.0").whole("a") == (value or None)


def test_an_empty_cell_is_no_number() -> None:
    for text in ("", "  "):
        assert row(text).number_of("a") is row(text).positive("a") is row(text).whole("a") is None
    assert row("1").number_of("absent") is None


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1,5", "1e999"])
def test_no_number_names_its_cell(text: str) -> None:
    with pytest.raises(UserError, match=rf"^jobs\.csv, row 3 \(line 5\), column a: '{text}' is not a number from 0 up$"):
        row(text).number_of("a")


def test_a_fraction_is_no_whole_number() -> None:
    with pytest.raises(UserError, match=r"column a: '1\.5' is not a whole number"):
        row("1.5").whole("a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"jobs\.csv is empty; its first line names the columns: nodes, step_s"),
        ("nodes,step_s\n", r"jobs\.csv has a header and no rows"),
        ("nodes\n1\n", r"jobs\.csv lacks the column step_s; the set has nodes, step_s"),
        ("node,steps\n1,2\n", r"lacks the columns nodes, step_s; is 'node' meant\?"),
        ("nodes,step_s,nodes\n1,2,3\n", r"jobs\.csv has the column nodes twice"),
        ("nodes,step_s\n1,2\n1\n", r"jobs\.csv, row 2 \(line 3\): 1 values for 2 columns"),
        (b"nodes,step_s\n\xff,1\n", r"jobs\.csv is not a CSV file in UTF-8"),
        ('nodes,step_s\n"1"x,2\n', r"jobs\.csv is not a CSV file in UTF-8"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(write(tmp_path, text), ["nodes", "step_s"])
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_as_it_was_given(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(UserError, match=f"cannot read {path}: .*; give a CSV file"):
            read(path, ["a"])


def test_what_parts_the_columns_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text('JobID|Name|State\n7|say "a,b|DONE\n')
    assert header(path) == (["JobID", "Name", "State"], "|")
    (row,) = read(path, ("JobID",), "|")
    assert (row.text("Name"), row.text("State")) == ('say "a,b', "DONE")
    path.write_text("\ufeffa, b\n1,2\n", encoding="utf-8")
    assert header(path) == (["a", "b"], ",")
    for text in ("", "\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"t\.txt is empty"):
            header(path)


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_sign_between_columns_is_named(tmp_path: Path, sign: str, name: str) -> None:
    (tmp_path / "a.csv").write_text(f"a{sign}b\n1{sign}2\n")
    with pytest.raises(UserError, match=f"a.csv: its columns are parted by {name}; part them by commas"):
        read(tmp_path / "a.csv", ("a", "b"))


def test_a_path_that_no_file_can_have() -> None:
    for open_it in (header, lambda path: read(path, ("a",))):
        with pytest.raises(UserError, match=r"cannot read 'a\\x00.csv': embedded null byte"):
            open_it("a\0.csv")
