"""Lines of a text file of any size, one at a time: plain or gzip, UTF-8 or UTF-16, without the colours of a terminal."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from paceline.errors import UserError

LINE = 1 << 16
"""Most characters of a line that are parsed."""
HEAD = 1 << 16
"""Bytes from the start of a file that show its kind."""
_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def head(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked. Raises UserError if it cannot be read or is empty."""
    try:
        with _opened(path) as stream:
            first = stream.read(HEAD)
    except EOFError:
        first = b""
    except (OSError, zlib.error) as error:
        raise unreadable(path, error) from error
    if not first.strip():
        raise UserError(f"{path.name} is empty", "give a log, a trace or an export of a run")
    return first


def open_text(path: Path, newline: str | None = None) -> TextIO:
    """Open a text file. Bytes that are no text are replaced. Raises OSError."""
    stream = _opened(path)
    start = stream.peek(2)[:2]
    encoding = "utf-16" if start in _UTF_16 else "utf-8-sig"  # Windows PowerShell redirects as UTF-16
    return io.TextIOWrapper(stream, encoding=encoding, errors="replace", newline=newline)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file. A carriage return ends a line too: progress bars write it.

    A gzip file that ends in the middle yields its complete part.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with open_text(path) as stream:
            while line := stream.readline(LINE):
                yield _COLOURS.sub("", line) if "\x1b" in line else line
    except EOFError:
        return
    except (OSError, zlib.error) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "give a log, a trace or an export")


def _opened(path: Path) -> io.BufferedReader:
    stream = path.open("rb")
    if stream.peek(2)[:2] != _GZIP:
        return stream
    stream.close()
    return io.BufferedReader(gzip.open(path, "rb"))  # type: ignore[arg-type]
