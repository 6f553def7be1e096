"""The figures that a command prints, by their path in its JSON; how they are written down, and how they differ."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.cli import main

HERE = Path(__file__).parent
FILE = HERE / "figures.json"
MEASURED = Path(os.environ.get("PACELINE_SHARED", HERE.parents[1].parent / "shared")) / "data" / "measured"
"""Published measurements: in PACELINE_SHARED, or in the folder ``shared`` beside the checkout."""
Figure = float | str | bool | None
Figures = Mapping[str, Figure]
DIGITS = 10
RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""What two figures may differ by: their last digits, and seconds where a difference of two times is nothing but rounding."""

_CHOICES = {"global_batch_size", "precision", "compression", "exchange", "sharding", "optimizer", "grad_accum_steps", "servers"}
_WORDS = _CHOICES | {"device", "network", "intra_link", "bottleneck", "limit", "resource", "scaling", "software"}
_OF_PLAN = {"time_s", "usd", "step_time_s", "memory_bytes", "bottleneck", "strategy"}
_OF_CURVE = {"devices", "step_time_s"}
_LISTS = {"ranking": 3, "by_devices": 8, "front": 4, "weak": 8, "strong": 8, "groups": 4, "staleness": 20}
"""Lists of which only the first few are kept."""
_PROSE = {"compression"}
"""Of a plan, why compression pays or does not."""
_LEFT_OUT = {"schema", "assumptions", "timeline", "excluded", "measured", "by_transport"}


def of(command: str) -> Figures:
    """Run a command line in this process; its figures, or for a refusal its exit code and message."""
    folders = {"{data}": str(HERE / "data"), "{measured}": str(MEASURED)}
    arguments = [re.sub(r"{\w+}", lambda name: folders[name[0]], argument) for argument in shlex.split(command)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments, "--json"])
    if code and not out.getvalue():
        return {"exit code": code, "message": err.getvalue().strip().replace(folders["{data}"], "{data}")}
    return dict(_walk("", json.loads(out.getvalue())))


def _walk(path: str, value: Any) -> Iterator[tuple[str, Figure]]:
    """Every figure below ``path``. Prose is left out, and of a strategy all but what a reader would name."""
    name = re.sub(r"\[\d+\]$", "", path.rpartition(".")[2])
    if isinstance(value, Mapping):
        kept = _kept(re.sub(r"\[\d+\]", "", path))
        for key, inner in value.items():
            if key not in _LEFT_OUT and (kept is None or key in kept or (name == "strategy" and isinstance(inner, Mapping))):
                # A strategy may be nested or flat: its choices have the same path in both.
                below = path if name == "strategy" and isinstance(inner, Mapping) else f"{path}.{key}".lstrip(".")
                yield from _walk(below, inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value[: _LISTS.get(name)]):
            yield from _walk(f"{path}[{number}]", inner)
    elif isinstance(value, bool) or (isinstance(value, str) and value and name in _WORDS and path not in _PROSE):
        yield path, value
    elif isinstance(value, int | float):
        yield path, float(f"{value:.{DIGITS}g}")
    elif value is None and name in ("mape", "usd", "held_out_error"):
        yield path, None


def _kept(path: str) -> set[str] | None:
    """Which numbers of an object are kept; None: all."""
    last = path.rpartition(".")[2]
    if last == "strategy":
        return _CHOICES
    if path in ("ranking", "by_devices", "front"):
        return _OF_PLAN
    return _OF_CURVE if last in ("weak", "strong") else None


def read() -> dict[str, Figures]:
    """What is written down, by case."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: dict(zip(data["paths"][kind], values, strict=True)) for name, (kind, values) in data["cases"].items()}


def write(figures: Mapping[str, Figures], commit: str) -> None:
    """Write down: one case a line, as its values and the number of the list of their paths, which many cases share."""
    kinds = list(dict.fromkeys(tuple(case) for case in figures.values()))
    paths = ",\n".join(_compact(kind) for kind in kinds)
    cases = ",\n".join(
        f"{_compact(name)}:{_compact([kinds.index(tuple(case)), list(case.values())])}" for name, case in figures.items()
    )
    text = f'{{"commit":{_compact(commit)},\n"paths":[\n{paths}\n],\n"cases":{{\n{cases}\n}}}}\n'
    FILE.write_text(text, encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def differing(before: Figures, after: Figures, except_below: Iterable[str] = ()) -> list[str]:
    """A line for each figure of ``before`` that is another one in ``after``, but for those at or below the paths given.

    Figures that only ``after`` has are new, which is no difference. Of a message its numbers count, not its words.
    """
    below = tuple(except_below)
    return [
        f"{path}: {value!r} before, {after.get(path, 'nothing')!r} after"
        for path, value in before.items()
        if not any(not prefix or re.match(rf"{re.escape(prefix)}($|[.\[])", path) for prefix in below)
        and (path not in after or not _same(value, after[path]))
    ]


def _same(before: Figure, after: Figure) -> bool:
    if isinstance(before, str) and isinstance(after, str):
        return before == after or (" " in before and before.startswith("paceline") and _numbers(before) == _numbers(after))
    if isinstance(before, bool | None) or isinstance(after, bool | None | str) or isinstance(before, str):
        return before is after
    return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d,.]*(?<![,.])", text))
