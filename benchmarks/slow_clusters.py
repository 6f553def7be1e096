"""Corrections on a cluster that nothing was chosen on: whole clusters left out, as measured and with noise.

    python benchmarks/slow_clusters.py FOLDER --out RESULTS/slow_clusters.csv

FOLDER holds ``pollux_sia_dataparallel.csv``. A cluster's own steps on at most 8 devices are visible, those on more are scored.
No constant was fitted on its chip. Its network is taken as unknown. ``VARIANTS`` change what the correction assumes. The line
``chosen on the others`` takes the variant with the least error on the other two clusters, under both conditions. In ``noisy``
the visible steps are disturbed, as on a shared cluster, and the scored ones are not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rows import append

from paceline.calibration.constants import efficiency
from paceline.csv_rows import read
from paceline.prediction import Observation, Predictor, fit
from paceline.prediction.correction import correction, gaussian_process
from paceline.validation.case import Case
from paceline.validation.pollux import PolluxForm
from paceline.validation.sets import adapter, pollux_sia

VISIBLE, SCORED = 700, 80
"""Most rows of a cluster that are visible, and that are scored, evenly over its rows."""
LIMIT = 8
"""Most devices of a visible step."""
DISTURBED = (0.2, 0.2, 0.3)
"""Standard deviations of the logarithm of a disturbed step: of its work, of its wait, and of all waits of a run."""
SHIPPED = "as shipped"
CHOSEN = "chosen on the others"
COLUMNS = ("cluster", "condition", "variant", "rows", "mape", "median", "inside", "pollux_mape")


def _lengths(factor: float) -> dict[str, Any]:
    scales = gaussian_process._SCALES.copy()
    scales[gaussian_process.TASK : gaussian_process.TASK + 3] *= factor
    return {"gaussian_process._SCALES": scales}


def _near(factor: float) -> dict[str, Any]:
    kernels = {"correction.WORK": correction.WORK, "correction.WAIT": correction.WAIT}
    return {name: replace(kernel, near=factor * kernel.near) for name, kernel in kernels.items()}


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    SHIPPED: {},
    "noise as assumed": {"gaussian_process.NOISES": (1.0,)},
    "lengths x 0.6": _lengths(0.6),
    "lengths x 1.6": _lengths(1.6),
    "spread x 0.6": _near(0.6),
    "spread x 1.6": _near(1.6),
}
"""Values of each variant, by their places in the modules of the correction."""


@dataclass(frozen=True)
class Score:
    """Errors on the scored rows of a cluster, as fractions."""

    errors: tuple[float, ...]
    inside: tuple[bool, ...]
    pollux: tuple[float, ...]

    @property
    def mape(self) -> float:
        """Mean error."""
        return float(np.mean(self.errors))


def clusters(path: Path) -> dict[str, list[Case]]:
    """Cases of each cluster; no network is known."""
    reader = adapter("pollux_sia")
    with patch.dict(pollux_sia.NETWORKS, clear=True):
        cases = [reader.read(row) for row in read(path, (*reader.texts, *reader.numbers))]
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if isinstance(case, Case):
            found[case.keys.system].append(case)
    return found


def even(cases: Sequence[Case], most: int) -> list[Case]:
    """At most so many of the cases, evenly."""
    return [cases[i] for i in np.unique(np.linspace(0, len(cases) - 1, most).astype(int))]


def disturbed(cases: Sequence[Case]) -> Iterator[Case]:
    """The cases with noise: each on its own, and the waits of a run together."""
    random = np.random.default_rng(1)
    work, wait, run = DISTURBED
    runs: dict[tuple[Any, ...], float] = {}
    for case in cases:
        shared = runs.setdefault((case.keys, case.setting.cluster.places), float(random.normal()))
        sync_s = (case.sync_s or 0.0) * exp(wait * random.normal() + run * shared)
        worked_s = (case.step_s - (case.sync_s or 0.0)) * exp(work * random.normal())
        yield replace(case, step_s=worked_s + sync_s, sync_s=None if case.sync_s is None else sync_s)


def score(visible: Sequence[Case], scored: Sequence[Case]) -> Score:
    """Predict the scored steps from the visible ones."""
    plain = Predictor(constants=efficiency("ordinary", scored[0].setting.cluster.device.chip))
    predictor = fit([_observation(case) for case in visible], plain)
    forms = {name: PolluxForm.fit([case for case in visible if case.keys.model == name]) for name in _models(scored)}
    errors, inside, pollux = [], [], []
    for case in scored:
        step = predictor.step(case.workload, case.setting.cluster, case.setting.strategy)
        errors.append(abs(step.step_time_s / case.step_s - 1))
        inside.append(step.low_s <= case.step_s <= step.high_s)
        form = forms[case.keys.model]
        if form is not None and (seconds := form(case)) is not None:
            pollux.append(abs(seconds / case.step_s - 1))
    return Score(tuple(errors), tuple(inside), tuple(pollux))


def _models(cases: Sequence[Case]) -> set[str]:
    return {case.keys.model for case in cases}


def _observation(case: Case) -> Observation:
    run = case.setting
    return Observation(
        workload=case.workload, cluster=run.cluster, strategy=run.strategy, step_s=case.step_s, sync_s=case.sync_s
    )


def changed(variant: Mapping[str, Any]) -> ExitStack:
    """A context in which the modules of the correction hold the values of a variant."""
    modules = {"gaussian_process": gaussian_process, "correction": correction}
    stack = ExitStack()
    for place, value in variant.items():
        module, _, name = place.partition(".")
        stack.enter_context(patch.object(modules[module], name, value))
    return stack


def scores(path: Path) -> Iterator[tuple[tuple[str, str, str], Score]]:
    """Score of each cluster, condition and variant."""
    for cluster, cases in clusters(path).items():
        visible = even([case for case in cases if case.keys.devices <= LIMIT], VISIBLE)
        scored = even([case for case in cases if case.keys.devices > LIMIT], SCORED)
        for condition, seen in (("as measured", visible), ("noisy", list(disturbed(visible)))):
            for name, variant in VARIANTS.items():
                with changed(variant):
                    yield (cluster, condition, name), score(seen, scored)


def chosen(found: Mapping[tuple[str, str, str], Score]) -> dict[tuple[str, str, str], Score]:
    """For each cluster and condition the variant with the least mean error on the other clusters, under all conditions."""
    names = {cluster for cluster, _, _ in found}
    out = {}
    for cluster, condition in {key[:2] for key in found}:
        others = {
            variant: float(
                np.mean([one.mape for (where, _, what), one in found.items() if where != cluster and what == variant])
            )
            for variant in VARIANTS
        }
        if len(names) > 1:
            best = min(others, key=lambda variant: others[variant])
            out[cluster, condition, f"{CHOSEN}: {best}"] = found[cluster, condition, best]
    return dict(sorted(out.items()))


def main(folder: str, out: Path | None) -> None:
    """Print a line for each score, and keep it."""
    found: dict[tuple[str, str, str], Score] = {}
    for key, one in scores(Path(folder) / "pollux_sia_dataparallel.csv"):
        found[key] = one
        keep(key, one, out)
    for key, one in chosen(found).items():
        keep(key, one, out)


def keep(key: tuple[str, str, str], one: Score, out: Path | None) -> None:
    """Print a score, and add it to the file."""
    figures = (one.mape, float(np.median(one.errors)), float(np.mean(one.inside)), float(np.mean(one.pollux)))
    values = [round(figure, 4) for figure in figures]
    print(*key, len(one.errors), *values, flush=True)
    if out:
        append(out, COLUMNS, dict(zip(COLUMNS, (*key, len(one.errors), *values), strict=True)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
