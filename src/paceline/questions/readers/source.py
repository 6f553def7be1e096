"""A file that a question is read from: its text, within limits, and the tree that its format has."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UserError

LARGEST = 1 << 20
"""Most bytes of a file of settings."""
DEEPEST, MOST = 24, 5000
"""Most levels of a tree, and most values: an anchor of YAML may repeat what it names without end."""
Leaf = tuple[tuple[str, ...], Any]
"""Path and value of a setting."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with the name by which errors and notes know it.

    Attributes:
        name: the file's name, or what a script calls a text that it holds.
        folder: folder of the file, in which files that it names are found.
    """

    name: str
    text: str
    folder: Path


def read_source(path: str) -> Source:
    """Read a file. Raises UserError if it is missing, too large or no text."""
    place = Path(path).expanduser()
    try:
        size = place.stat().st_size
        if place.is_dir():
            raise UserError(f"{path} is a folder", "name its file")
        if size > LARGEST:
            raise UserError(f"{path} has {size:,} bytes; a file of settings has at most {LARGEST:,}", "give the settings alone")
        data = place.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", "give the path of a file") from error
    if not data.strip():
        raise UserError(f"{path} is empty", "give a file with settings")
    if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05"):
        fix = "print(args.to_json_string()) writes them as text"
        raise UserError(f"{path} is a pickle, which may run code: it is not opened", fix)
    try:
        return Source(place.name, data.decode("utf-8-sig"), place.parent)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text", "give a file of settings") from error


def json_tree(text: str) -> Mapping[str, Any] | None:
    """Return the object of a JSON text; None for others."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def toml_tree(text: str) -> Mapping[str, Any] | None:
    """Return the tables of a TOML text; None for others."""
    try:
        return tomllib.loads(text) or None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def yaml_tree(source: Source) -> Mapping[str, Any] | None:
    """Return the mapping of a YAML text; None for a text without one.

    Raises:
        UserError: YAML that cannot be read, or that would make objects.
    """
    import yaml  # type: ignore[import-untyped]  # only where a file is read

    try:
        tree = yaml.safe_load(source.text)
    except yaml.constructor.ConstructorError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source.name}{where} would make an object: {error.problem}", "write plain values") from error
    except yaml.YAMLError as error:
        if not _is_like_yaml(source.text):
            return None
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise UserError(f"{source.name}{where} is no YAML: {problem}", "correct it, or give another file") from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{source.name} is no YAML that can be read: {error}", "give another file") from error
    return tree if isinstance(tree, dict) and tree else None


def _is_like_yaml(text: str) -> bool:
    """Return whether most lines have the form of YAML, so that its errors help."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return 2 * sum(bool(re.match(r"\s*(?:- )*[\w.-]+\s*:(?:\s|$)|\s*- ", line)) for line in lines) > len(lines)


def printed_tree(text: str) -> Mapping[str, Any] | None:
    """Return the arguments that ``print(training_args)`` shows: a line each, ``name=value,``; None for other texts."""
    if not re.match(r"\s*\w*(Arguments|Config)\(\n", text):
        return None
    lines = re.findall(r"^\s*(\w+)=(.*?),?$", text, re.MULTILINE)
    return {name: _printed(value) for name, value in lines} or None


def _printed(text: str) -> Any:
    """Return the value of a printed argument."""
    word = text.strip().strip("'\"")
    plain = {"True": True, "False": False, "None": None}
    if word in plain:
        return plain[word]
    try:
        return json.loads(text.replace("'", '"').replace("True", "true").replace("False", "false").replace("None", "null"))
    except ValueError:
        return word.rpartition(".")[2].lower() if re.fullmatch(r"[A-Z]\w+\.[A-Z_0-9]+", word) else word


def leaves(tree: Mapping[str, Any], source: str, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield the settings of a tree with their paths. Lists of plain values are one setting.

    Raises:
        UserError: a tree too deep or too large.
    """
    for number, leaf in enumerate(_leaves(tree, source, path)):
        if number == MOST:
            raise UserError(f"{source} has more than {MOST:,} settings", "give the settings of the training alone")
        yield leaf


def _leaves(value: Any, source: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    if len(path) > DEEPEST:
        raise UserError(f"{source} has more than {DEEPEST} levels", "give the settings of the training alone")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, source, (*path, str(name)))
        return
    if isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, source, (*path, str(number)))
        return
    yield path, value
