"""Text of any encoding, packed or cut, with colours and progress bars."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from paceline.calibration.imports.text_lines import LINE, head, text_lines
from paceline.errors import UserError

TEXT = "step 1\nstep 2 ███\n"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (TEXT.encode(), ["step 1\n", "step 2 ███\n"]),
        (TEXT.encode("utf-16"), ["step 1\n", "step 2 ███\n"]),
        (b"\xef\xbb\xbf" + TEXT.encode(), ["step 1\n", "step 2 ███\n"]),
        (gzip.compress(TEXT.encode(), mtime=0), ["step 1\n", "step 2 ███\n"]),
        (b" 1%| | 1/9\r 2%| | 2/9\r\n\x1b[31mend\x1b[39m\x1b[A", [" 1%| | 1/9\n", " 2%| | 2/9\n", "end"]),
        (b"loss \xff\n", ["loss �\n"]),
    ],
)
def test_lines_are_read(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    place = tmp_path / "a.log"
    place.write_bytes(content)
    assert list(text_lines(place)) == lines


def test_a_packed_file_that_is_cut_is_read_to_its_end(tmp_path: Path) -> None:
    place = tmp_path / "a.log.gz"
    place.write_bytes(gzip.compress(b"".join(b"step %d\n" % n for n in range(20_000)))[:-9])
    assert len(list(text_lines(place))) > 1000 and head(place).startswith(b"step 0\n")


def test_a_long_line_is_divided(tmp_path: Path) -> None:
    place = tmp_path / "a.log"
    place.write_text("x" * (3 * LINE + 5))
    assert [len(line) for line in text_lines(place)] == [LINE, LINE, LINE, 5]


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.gz"
    place.write_bytes(b"\x1f\x8b and no more")
    for read in (head, lambda path: list(text_lines(path))):
        with pytest.raises(UserError, match="cannot read"):
            read(place)
        with pytest.raises(UserError, match="cannot read"):
            read(tmp_path / "none")
    place.write_bytes(b"\n \n")
    with pytest.raises(UserError, match=r"a\.gz is empty"):
        head(place)
