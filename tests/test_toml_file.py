"""Files of TOML, and what no file of TOML may be."""

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.toml_file import read_toml


@pytest.mark.parametrize("data", [b"a = 1\n[b]\n", b"a = 1\r\n[b]\r\n", b"\xef\xbb\xbfa = 1\n[b]\n"])
def test_line_ends_and_a_byte_order_mark_make_no_difference(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    assert read_toml(tmp_path / "x.toml", "") == {"a": 1, "b": {}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a = ", "x.toml is not TOML: Invalid value"),
        (b"a = '\xe9'", "x.toml is not TOML: byte 6 is not UTF-8; save it in this encoding"),
        (b"\xff\xfea\0", "byte 1 is not UTF-8"),
        (b"a = " + b"[" * 10_000 + b"]" * 10_000, "nested too deeply; write a table"),
        (b"a = 1" + b"0" * 5000, "is not TOML: .*4300 digits"),
    ],
)
def test_what_is_not_toml(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_toml(tmp_path / "x.toml", "write a table")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none.toml: No such file or directory; write a table"):
        read_toml(tmp_path / "none.toml", "write a table")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        read_toml(tmp_path, "")
    with pytest.raises(UserError, match=r"'a\\x00b' is not TOML: embedded null byte"):
        read_toml("a\0b", "")
