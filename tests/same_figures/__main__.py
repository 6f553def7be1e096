"""Write down the figures of a checkout: those before a change.

PYTHONPATH=CHECKOUT/src:tests python -m same_figures
"""

from __future__ import annotations

import time

from paceline.record import environment
from same_figures import figures
from same_figures.cases import CASES, PUBLISHED


def main() -> None:
    """Run every case and write its figures. The published measurements must be there."""
    begin = time.perf_counter()
    seconds: dict[str, float] = {}
    collected: dict[str, figures.Figures] = {}
    for name, command in {**CASES, **PUBLISHED}.items():
        start = time.perf_counter()
        collected[name] = figures.of(command)
        seconds[name] = time.perf_counter() - start
        if ("exit code" in collected[name]) != name.startswith("refused"):
            print(f"{name}: {command}\n    {collected[name].get('message', 'is not refused')}")
    figures.write(collected, environment()["commit"])
    size = figures.FILE.stat().st_size
    print(f"{len(collected)} cases in {time.perf_counter() - begin:.1f} s, {size / 1e3:.0f} kB in {figures.FILE}")
    print("slowest:", ", ".join(f"{name} {seconds[name]:.2f} s" for name in sorted(seconds, key=seconds.__getitem__)[:-9:-1]))


if __name__ == "__main__":
    main()
