"""Error of predicted speed-ups on measured pairs, and how much the errors of two predictions have in common.

    python benchmarks/speedup_error.py mlperf=mlperf_training.csv pollux_sia=pollux_sia_dataparallel.csv

The files are those of ``paceline validate``. Rows are predicted with no row visible and constants fitted without the device.
They are paired within a network: one device at two scales, and two devices at one scale. The error is that of the ratio of two
predicted samples/s. ``r`` is ``mean(e1 e2) / mean(e^2)`` of the logarithms of predicted / measured.
``planning/compare/whatif.py`` uses it for its ranges; the last column says how many of the pairs these hold.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations
from statistics import fmean, median

from paceline.calibration.uncertainty import Z80, log_spread
from paceline.csv_rows import read
from paceline.errors import UserError
from paceline.planning.compare.speedup_range import SHARED, ratio_spread
from paceline.validation.case import Case, Info
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.score import Estimate
from paceline.validation.sets import adapter

Row = tuple[Case, Estimate]
MOST = 400
"""Rows of a set that are predicted, drawn at random; pairs of one group are cut to as many."""


def rows(name: str, path: str) -> list[Row]:
    """Cases with their predictions."""
    reader = adapter(name)
    cases = [c for c in map(reader.read, read(path, (*reader.texts, *reader.numbers))) if isinstance(c, Case)]
    cases = [c for c in cases if c.keys.system != "azure"]
    random.Random(0).shuffle(cases)
    model, predicted = InformedPredictor(lambda case: [], Info(), "device"), []
    for case in cases[:MOST]:
        try:
            predicted.append((case, model(case)))
        except UserError:
            continue
    return predicted


def pairs(
    predicted: Sequence[Row], key: Callable[[Case], Hashable], apart: Callable[[Case], Hashable]
) -> Iterator[tuple[Row, Row]]:
    """Pairs of one ``key`` that differ in ``apart``."""
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in predicted:
        groups[key(row[0])].append(row)
    for own in groups.values():
        chosen = [pair for pair in combinations(own, 2) if apart(pair[0][0]) != apart(pair[1][0])]
        random.Random(0).shuffle(chosen)
        yield from chosen[:MOST]


def off(row: Row) -> float:
    """Log of predicted over measured."""
    return math.log(row[1].step_s / row[0].step_s)


def line(title: str, chosen: Sequence[tuple[Row, Row]], shared: float) -> str:
    """One row of the table."""
    errors = [abs(math.exp(off(b) - off(a)) - 1) for a, b in chosen]
    together = fmean(off(a) * off(b) for a, b in chosen) / fmean((off(a) ** 2 + off(b) ** 2) / 2 for a, b in chosen)
    held = [
        abs(off(a) - off(b)) <= Z80 * ratio_spread(*(log_spread(x[1].low_s, x[1].high_s) for x in (a, b)), shared)
        for a, b in chosen
    ]
    return f"| {title} | {len(chosen)} | {fmean(errors):.1%} | {median(errors):.1%} | {together:.2f} | {fmean(held):.0%} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME=FILE.csv")
    print("| pairs | number | mean error of the speed-up | median | r | in its 80 % range |")
    print("|---|---|---|---|---|---|")
    for text in parser.parse_args().sets:
        name, _, path = text.partition("=")
        found = rows(name, path)
        scale = list(pairs(found, lambda c: (c.keys.model, c.keys.device, c.keys.system), lambda c: c.keys.devices))
        device = list(pairs(found, lambda c: (c.keys.model, c.keys.devices), lambda c: c.keys.device))
        for title, some, shared in (("another scale", scale, SHARED["same"]), ("another device", device, SHARED["other"])):
            if some:
                print(line(f"{name}, {title}", some, shared), flush=True)
