"""Command that writes the layer tables of ``paceline.workload`` from the modules.

``python -m paceline.models.tables [NAME ...] [--check]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.models.registry import REGISTRY, model
from paceline.workload import Workload

ZOO = Path(__file__).parents[1] / "workload" / "zoo"


def fresh(name: str) -> Workload:
    """Trace a named network again and return its table."""
    entry = model(name)
    return Workload.trace(
        entry.function,
        entry.input.example(1, "meta"),
        name=name,
        sample=entry.sample,
        source=entry.source,
        loss=entry.loss,
    )


def render(workload: Workload) -> str:
    """Format a table as JSON with one layer or parameter per line, so that a diff shows only what changed."""
    parts = []
    for key, value in workload.to_json().items():
        if key in ("layers", "parameters"):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{key}":[\n{rows}\n]')
        else:
            parts.append(f"{json.dumps(key)}:{json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the tables of the named networks, or of all; ``--check`` only lists those that differ. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    check, stale = "--check" in given, []
    for name in [word for word in given if word != "--check"] or REGISTRY:
        path, text = ZOO / f"{name}.json", render(fresh(name))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")
    extra = sorted(path.name for path in ZOO.glob("*.json") if path.stem not in REGISTRY)
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'none'}")
    if extra:
        print(f"without a model: {', '.join(extra)}")
    return int(bool(extra or (check and stale)))


if __name__ == "__main__":
    sys.exit(main())
