"""Reader of a user's TOML file, with one-line errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import UserError, shorten


def read_toml(path: str | Path, fix: str) -> dict[str, Any]:
    """Read the tables of a file in UTF-8, with or without a byte order mark.

    Args:
        fix: the next step of every error, such as an example of the file.

    Raises:
        UserError: it cannot be opened, or is not TOML.
    """
    import tomllib  # not with the package, whose import is light

    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", fix) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not TOML: byte {error.start + 1:,} is not UTF-8", "save it in this encoding") from error
    except RecursionError:
        raise UserError(f"{path} is not TOML that can be read: its values are nested too deeply", fix) from None
    except ValueError as error:  # what is not TOML, a path with a zero byte, a number of more than 4,300 digits
        raise UserError(f"{_shown(path)} is not TOML: {shorten(str(error))}", fix) from error


def _shown(path: str | Path) -> str:
    return str(path) if str(path).isprintable() else repr(str(path))
