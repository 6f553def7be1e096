"""A user's own clusters by name, in ``clusters.toml`` in Paceline's folder of the user's configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UserError, shown, unknown
from paceline.names import likeliest
from paceline.toml_file import read_toml

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class SavedCluster:
    """Cluster in the user's words.

    Attributes:
        text: as ``Cluster.named`` takes it: ``4x8 H100, 400Gb/s RoCE``.
        usd_per_device_hour: the user's price; None means the listed price.
    """

    name: str
    text: str
    usd_per_device_hour: float | None = None


def clusters_file() -> Path:
    """Return the path of ``clusters.toml`` in ``$XDG_CONFIG_HOME/paceline``, by default ``~/.config/paceline`` (XDG Base
    Directory)."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".config") / "paceline" / "clusters.toml"


def saved_clusters() -> Mapping[str, SavedCluster]:
    """Return all saved clusters by name; empty without a file.

    Raises:
        UserError: the file cannot be read, or has another form.
    """
    file = clusters_file()
    if not file.exists():
        return {}
    tables = read_toml(file, "mend it, or remove it and add the clusters again")
    return {name: _saved(name, entry, file) for name, entry in tables.items()}


def saved_cluster(name: str) -> SavedCluster | None:
    """Return the cluster saved under ``name`` in any case, or None. Raises UserError as ``saved_clusters``."""
    if not _NAME.fullmatch(name.strip()):
        return None
    wanted = name.strip().casefold()
    return next((entry for own, entry in saved_clusters().items() if own.casefold() == wanted), None)


def check_slip(text: str) -> None:
    """Raise UserError if ``text`` is nearly the name of a saved cluster."""
    if _NAME.fullmatch(text.strip()) and (near := likeliest(text.strip(), saved_clusters())):
        raise UserError(f"unknown cluster {text.strip()!r}", f"did you mean {near}? paceline cluster list shows all")


def save_cluster(entry: SavedCluster) -> Path:
    """Write ``entry`` into the file, replacing an entry of the same name. Returns the file. Its other lines and comments stay.

    Raises:
        UserError: a name of other characters, a negative price, or a file that cannot be read or written.
    """
    if not _NAME.fullmatch(entry.name):
        raise UserError(f"cluster name {shown(entry.name)}", "use letters, digits, '-', '_' and '.', a letter first")
    table: dict[str, Any] = {"cluster": entry.text}
    if entry.usd_per_device_hour is not None:
        table["usd_per_device_hour"] = _price(entry.usd_per_device_hour, entry.name)
    known = saved_cluster(entry.name)
    return _write({entry.name if known is None else known.name: table})


def forget_cluster(name: str) -> Path:
    """Delete a cluster from the file. Returns the file. Raises UserError where no such cluster is saved."""
    entry = saved_cluster(name)
    if entry is None:
        raise unknown("saved cluster", name, list(saved_clusters()), "paceline cluster list shows all")
    return _write({entry.name: None})


def _write(changed: Mapping[str, dict[str, Any] | None]) -> Path:
    """Return the text of the file with the given tables set, or deleted if None."""
    import tomlkit

    file = clusters_file()
    saved_clusters()  # a damaged file is named, not replaced
    try:
        document = tomlkit.parse(file.read_text(encoding="utf-8-sig")) if file.exists() else tomlkit.document()
        for name, table in changed.items():
            if table is None:
                document.remove(name)
            else:
                document[name] = table
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}.toml")
        draft.write_text(tomlkit.dumps(document), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}", "set XDG_CONFIG_HOME to a folder of yours") from None
    return file


def _saved(name: str, entry: Any, file: Path) -> SavedCluster:
    if not isinstance(entry, dict) or not isinstance(entry.get("cluster"), str):
        example = f"[{name}]\ncluster = '4x8 H100, 400Gb/s RoCE'"
        raise UserError(f"{name} in {file} names no cluster", f"write it as {example!r}")
    price = entry.get("usd_per_device_hour")
    return SavedCluster(name, entry["cluster"], None if price is None else _price(price, name))


def _price(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UserError(f"a price of {shown(value)} for {name}", "give dollars a device and hour, such as 2.50")
    return float(value)
