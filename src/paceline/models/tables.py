"""Write the layer tables of ``paceline.workload`` from the modules.

``python -m paceline.models.tables [NAME ...] [--check]``
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from paceline.models import REGISTRY, model
from paceline.workload.layers import Workload
from paceline.workload.trace import trace

ZOO = Path(__file__).parents[1] / "workload" / "zoo"


def fresh(name: str) -> Workload:
    """The table of a named network, traced now."""
    entry = model(name)
    return trace(
        entry.function,
        entry.input.example(1, "meta"),
        name=name,
        sample=entry.sample,
        source=entry.source,
        loss=entry.loss,
    )


def render(workload: Workload) -> str:
    """JSON with one layer or parameter a line, so that a change shows as the lines that changed."""
    parts = []
    for key, value in workload.to_json().items():
        if key in ("layers", "parameters"):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{key}":[\n{rows}\n]')
        else:
            parts.append(f"{json.dumps(key)}:{json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write every table, or with ``--check`` name those that differ. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when a table is out of date")
    parser.add_argument("names", nargs="*", help="the networks; all of them when none is named")
    options = parser.parse_args(arguments)
    check, stale = options.check, []
    for name in options.names or REGISTRY:
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
