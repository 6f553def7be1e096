"""Reader of a JSON file of any length, one element at a time. It holds one element and one piece of text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

PIECE = 1 << 20
"""Characters per read."""
LARGEST = 1 << 26
"""Most characters of one element: 64 million."""
_DECODER = json.JSONDecoder(strict=False)
_BLANK = " \t\r\n"
_ENDS = frozenset(f"{_BLANK},:]}}")
"""Characters that may follow a value."""


class _Text:
    """The text that was read and not yet consumed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._held, self._at, self._ended = stream, "", 0, False

    def _read_piece(self) -> bool:
        """Read one more piece. Returns False at the end."""
        if self._ended:
            return False
        if len(self._held) - self._at > LARGEST:
            raise ValueError(f"an element of more than {LARGEST:,} characters")
        piece = self._stream.read(max(PIECE, len(self._held) - self._at))  # doubles: one long element is not read over and over
        self._held, self._at, self._ended = self._held[self._at :] + piece, 0, not piece
        return bool(piece)

    def peek(self) -> str:
        """Return the next character that is not blank; empty at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._read_piece():
                return ""

    def take(self, expected: str) -> None:
        """Consume one character. Raises ValueError if it is another one."""
        if self.peek() != expected:
            raise ValueError(f"{self.peek()!r} where {expected!r} is expected" if self.peek() else "it ends in the middle")
        self._at += 1

    def value(self) -> Any:
        """Parse the next value. Raises ValueError without one."""
        if not self.peek():
            raise ValueError("it ends in the middle")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                if not self._read_piece():
                    raise ValueError("it ends in the middle" if error.pos >= len(self._held) - 1 else error.msg) from None
                continue
            if self._held[end : end + 1] in _ENDS or not self._read_piece():  # "1.5e" continues in the next piece
                self._at = end
                return value

    def elements(self, closing: str) -> Iterator[None]:
        """Yield once before each element, and consume the ``closing`` character after the last."""
        first = True
        while self.peek() != closing:
            if not first:
                self.take(",")
            first = False
            yield
        self.take(closing)


def members(stream: TextIO, streamed: str) -> Iterator[tuple[str, Any]]:
    """Yield members of the object in a file: each element of the array ``streamed`` separately, other members complete.

    A file with only an array counts as that array.

    Raises:
        ValueError: it is no JSON object or array, or it ends in the middle.
    """
    text = _Text(stream)
    if text.peek() == "[":
        text.take("[")
        for _ in text.elements("]"):
            yield streamed, text.value()
        return
    text.take("{")
    for _ in text.elements("}"):
        name = text.value()
        text.take(":")
        if name == streamed and text.peek() == "[":
            text.take("[")
            for _ in text.elements("]"):
                yield streamed, text.value()
        else:
            yield str(name), text.value()
