"""Measurement of a run from its records and facts, checked against sizes that the user states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from paceline.array_types import Array
from paceline.calibration.imports.quantities import StepRecords
from paceline.calibration.imports.run_measurement import RunFact, RunMeasurement
from paceline.calibration.imports.step_series import StepSeries, StepSizes, one_process, step_series
from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.calibration.records import COLUMNS
from paceline.errors import UserError

SAME = 0.05
"""Largest relative difference between two counts of the tokens of a step. Clocks and rounded rates differ by a few percent."""
WHOLE_DEVICES = 0.01
"""Largest relative difference from a whole number of devices."""
SUMMARY_STEPS = 0.02
"""Largest relative difference between the steps of a summary and of its file."""
RATES = ("tokens_per_s", "device_tokens_per_s", "samples_per_s", "device_tflops")
_DIGITS = 0.0005
"""Rounding error of the rates that transformers writes (``speed_metrics``, three decimals)."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """StepSizes of the run that the user states; None: not stated."""

    global_batch: int | None = None
    seq_len: int | None = None
    world_size: int | None = None


class RunFormat(Protocol):
    """Names of a format. ``counts_all_tokens``: rates count every token of the batch. ``untimed``: next step without times."""

    @property
    def name(self) -> str: ...
    @property
    def framework(self) -> str: ...
    @property
    def counts_all_tokens(self) -> bool: ...
    @property
    def untimed(self) -> str: ...


def contradiction(file: str, name: str, fact: RunFact, given: object) -> UserError:
    """Return the error for a given value that differs from the file's."""
    where = f" ({fact})" if str(fact) else ""
    how = "give the --cluster that it ran on" if name in ("device", "world_size") else "leave it out to take the file's"
    fix = f"{how}, or give the file of the run that you mean"
    return UserError(f"{file} states {name} {fact.value}{where}, and {given} was given", fix)


def measured_run(
    file: str,
    form: RunFormat,
    records: StepRecords,
    facts: Mapping[str, RunFact],
    stated: Stated,
    notes: Sequence[str] = (),
    eval_s: Sequence[float] = (),
) -> RunMeasurement:
    """Return the measurement of a run.

    Args:
        eval_s: seconds of each evaluation within the run.

    Raises:
        UserError: steps of different batches; a stated size that contradicts the file; rates without the size of a step.
    """
    columns, left_out = one_process(records)
    known = _derived({**facts, **_batch(file, columns)}, columns)
    _check_stated(file, known, stated)
    sizes = _sizes(known, stated)
    series = step_series(columns, sizes)
    known |= _counted(columns, series, known)
    known |= _devices(known)
    known |= _batch_of_tokens(known, stated)
    _check_tokens(file, form, known, sizes, stated)
    summary = _summary(known, columns, eval_s)
    every = (*notes, *left_out, *series.notes)
    step_s, mean_of, basis = list(series.step_s), 0, series.basis
    if summary:
        known |= summary.facts
        every += summary.notes
        if len(step_s) < 2 or basis.startswith("the smoothed"):
            doubt = _differs(step_s, summary.step_s)
            if not step_s:
                step_s, mean_of, basis = [summary.step_s], summary.steps, summary.basis
            every += (doubt,) if doubt else ()
    rates = {name: float(np.nanmedian(columns[name])) for name in RATES if not np.isnan(columns[name]).all()}
    lacks = ("", "") if step_s else _missing_size(file, form, rates)
    memory = _memory(columns, known)
    return RunMeasurement(
        file=file,
        kind=form.name,
        framework=known["framework"].value if "framework" in known else form.framework,
        basis=basis,
        lacks=lacks,
        steps=None
        if not step_s
        else MeasuredSteps(
            source=form.name,
            step_s=step_s,
            mean_of=mean_of,
            job={name: fact.value for name, fact in known.items() if name in COLUMNS},
            processes=int(known["world_size"].value) if "world_size" in known else 0,
            places={name: str(fact) for name, fact in known.items()},
        ),
        facts=known,
        rates=rates,
        memory_bytes=memory,
        notes=every,
    )


def _batch(file: str, columns: Mapping[str, Array]) -> dict[str, RunFact]:
    batches = columns["global_batch"]
    sizes = list(dict.fromkeys(int(size) for size in batches[~np.isnan(batches)]))
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes[:6])) + (" and more" if len(sizes) > 6 else "")
        raise UserError(f"{file}: steps of {listed} samples", "give the lines of one batch alone")
    return {"global_batch": RunFact(str(sizes[0]), "", "its lines of steps")} if sizes else {}


def _number(facts: Mapping[str, RunFact], name: str) -> float:
    try:
        return float(facts[name].value)
    except (KeyError, ValueError):
        return 0.0


def _derived(facts: dict[str, RunFact], columns: Mapping[str, Array]) -> dict[str, RunFact]:
    """Add the facts that follow from others: the number of devices, accumulation, the batch, the tokens of a step."""
    sizes = [_number(facts, name) for name in ("dp_shard", "dp_replicate", "tensor", "pipeline", "context")]
    if all(sizes) and "world_size" not in facts:
        facts["world_size"] = RunFact(f"{np.prod(sizes):.0f}", facts["dp_shard"].place, "product of its mesh")
    for name in ("tensor", "pipeline", "context", "expert", "grad_accum"):
        if _number(facts, name) == 1:
            del facts[name]
    for name in ("dp_shard", "dp_replicate"):
        facts.pop(name, None)
    world, micro, batch = (_number(facts, name) for name in ("world_size", "micro_batch", "global_batch"))
    model = int(np.prod([_number(facts, name) or 1 for name in ("tensor", "pipeline", "context")]))
    at_once = micro * max(1, world // model)
    if world and micro and batch and batch % at_once == 0 and "grad_accum" not in facts and batch > at_once:
        facts["grad_accum"] = RunFact(f"{batch / at_once:.0f}", "", "batch over micro-batch and replicas")
    totals, steps = columns["tokens_total"], columns["step"]
    each = totals[steps > 0] / steps[steps > 0]
    each = each[~np.isnan(each)]
    if len(each) and np.all(np.abs(each - each[0]) < 0.5) and "tokens_per_step" not in facts:
        facts["tokens_per_step"] = RunFact(f"{each[0]:.0f}", "", "total tokens over steps")
    tokens, length = _number(facts, "tokens_per_step"), _number(facts, "seq_len")
    if tokens and length and tokens % length == 0 and "global_batch" not in facts:
        facts["global_batch"] = RunFact(
            f"{tokens / length:.0f}", "", f"{tokens:.0f} tokens a step over {length:.0f} a sequence"
        )
    return facts


def _check_stated(file: str, facts: Mapping[str, RunFact], stated: Stated) -> None:
    for item in fields(Stated):
        given = getattr(stated, item.name)
        if given is not None and item.name in facts and _number(facts, item.name) != given:
            raise contradiction(file, item.name, facts[item.name], given)
    tokens = _number(facts, "tokens_per_step")
    if tokens and stated.global_batch and stated.seq_len and stated.global_batch * stated.seq_len != tokens:
        given = f"{stated.global_batch} x {stated.seq_len} = {stated.global_batch * stated.seq_len:,}"
        raise contradiction(file, "tokens a step", RunFact(f"{tokens:,.0f}", facts["tokens_per_step"].place), given)


def _sizes(facts: Mapping[str, RunFact], stated: Stated) -> StepSizes:
    batch = stated.global_batch or _number(facts, "global_batch")
    length = stated.seq_len or _number(facts, "seq_len")
    world = stated.world_size or _number(facts, "world_size")
    tokens = _number(facts, "tokens_per_step") or batch * length
    return StepSizes(
        global_batch=batch or (tokens / length if length and tokens % length == 0 else 0),
        tokens_per_step=tokens,
        device_tokens_per_step=tokens / world if world else 0.0,
    )


def _counted(columns: Mapping[str, Array], series: StepSeries, facts: Mapping[str, RunFact]) -> dict[str, RunFact]:
    """Return the sizes of a step that follow from a rate and the seconds of a step, if the seconds follow from no rate."""
    if not series.step_s or series.basis not in ("", "steps a second", "the clock of its lines"):
        return {}
    usual = float(np.median(series.step_s[1:] or series.step_s))
    counted: dict[str, RunFact] = {}
    for name, size in (
        ("samples_per_s", "global_batch"),
        ("tokens_per_s", "tokens_per_step"),
        ("device_tokens_per_s", "device_tokens_per_step"),
    ):
        rates = columns[name][~np.isnan(columns[name])]
        if not len(rates) or size in facts:
            continue
        count = float(np.median(rates[1:] if len(rates) > 1 else rates)) * usual
        if size != "global_batch":
            counted[size] = RunFact(f"{count:.0f}", "", f"{name.replace('_', ' ')} times the seconds of a step")
        elif series.basis in ("", "steps a second") and _is_whole(count):
            counted[size] = RunFact(f"{count:.0f}", "", "samples a second times the seconds of a step")
    return counted


def _devices(facts: Mapping[str, RunFact]) -> dict[str, RunFact]:
    """Return the number of devices that the tokens of a step and of one device give: up to 8, or a multiple of 8."""
    total, each = _number(facts, "tokens_per_step"), _number(facts, "device_tokens_per_step")
    if not total or not each or "world_size" in facts:
        return {}
    nearest = round(total / each) if total / each < 8.5 else 8 * round(total / each / 8)
    if not nearest or abs(total / each / nearest - 1) > WHOLE_DEVICES:
        return {}
    return {"world_size": RunFact(str(nearest), "", "tokens of a step over those of one device")}


def _batch_of_tokens(facts: Mapping[str, RunFact], stated: Stated) -> dict[str, RunFact]:
    """Return the batch that the tokens of a step and a stated length give."""
    tokens = _number(facts, "tokens_per_step") or _number(facts, "device_tokens_per_step") * (stated.world_size or 0)
    if "global_batch" in facts or stated.global_batch or not stated.seq_len or not _is_whole(tokens / stated.seq_len):
        return {}
    batch = round(tokens / stated.seq_len)
    return {"global_batch": RunFact(str(batch), "", f"{tokens:,.0f} tokens a step, {stated.seq_len:,} a sequence")}


def _is_whole(count: float) -> bool:
    """Return whether a rounded product is one whole number beyond doubt."""
    nearest = round(count)
    return nearest >= 1 and (abs(count - nearest) <= 0.1 or (nearest % 8 == 0 and abs(count - nearest) <= 1e-3 * nearest))


def _check_tokens(file: str, form: RunFormat, facts: Mapping[str, RunFact], sizes: StepSizes, stated: Stated) -> None:
    """Raise UserError if stated sizes differ from the tokens that rate and seconds of a step give."""
    if not form.counts_all_tokens or not (stated.global_batch or stated.seq_len or stated.world_size):
        return
    for name, expected, words in (
        ("tokens_per_step", sizes.tokens_per_step, "tokens a step"),
        ("device_tokens_per_step", sizes.device_tokens_per_step, "tokens a step of a device"),
    ):
        counted = _number(facts, name)
        if counted and expected and abs(counted / expected - 1) > SAME:
            raise contradiction(file, words, RunFact(f"{counted:,.0f}", "", facts[name].text), f"{expected:,.0f}")


@dataclass(frozen=True, kw_only=True)
class _Summary:
    """Means over a whole run."""

    step_s: float
    steps: int
    basis: str
    facts: Mapping[str, RunFact]
    notes: tuple[str, ...]


def _summary(facts: dict[str, RunFact], columns: Mapping[str, Array], eval_s: Sequence[float]) -> _Summary | None:
    """Return the means of the summary that transformers writes at the end; None without one."""
    runtime, steps_rate, rate = (
        _number(facts, name) for name in ("train_runtime", "train_steps_per_second", "train_samples_per_second")
    )
    for name in ("train_runtime", "train_steps_per_second", "train_samples_per_second"):
        facts.pop(name, None)
    if not runtime or not steps_rate:
        return None
    ran, last = runtime * steps_rate, _number(facts, "last_step")
    facts.pop("last_step", None)
    notes: tuple[str, ...] = ()
    derived: dict[str, RunFact] = {}
    lowest, highest = (max(0.0, rate - _DIGITS) / (steps_rate + _DIGITS), (rate + _DIGITS) / max(steps_rate - _DIGITS, 1e-9))
    wholes = range(int(np.ceil(lowest)), int(np.floor(highest)) + 1)
    if rate and len(wholes) == 1 and wholes[0] and "global_batch" not in facts:
        derived["global_batch"] = RunFact(str(wholes[0]), "", f"{rate:g} samples a second over {steps_rate:g} steps a second")
    seconds = runtime
    if last and abs(ran / last - 1) > SUMMARY_STEPS + _DIGITS / steps_rate:
        notes += (f"Its summary is of {ran:,.0f} steps and the file of {last:,.0f}, as after a resumed run.",)
        last = 0.0
    elif eval_s and sum(eval_s) < runtime:
        seconds -= sum(eval_s)
        notes += (f"{len(eval_s)} evaluations of {sum(eval_s):.0f} s in all do not count.",)
    steps = last or ran
    basis = "its run time over its steps" if last else "its mean steps a second"
    return _Summary(step_s=seconds / steps, steps=max(1, round(steps)), basis=basis, facts=derived, notes=notes)


def _differs(step_s: Sequence[float], mean: float) -> str:
    if not step_s or 0.8 < (usual := float(np.median(step_s))) / mean < 1.25:
        return ""
    return f"Its summary states {mean:.3g} s a step and its lines {usual:.3g} s: pauses, or lines of another run."


def _memory(columns: Mapping[str, Array], facts: dict[str, RunFact]) -> float | None:
    stated = [_number(facts, name) * unit for name, unit in (("memory_mib", 2.0**20), ("memory_gib", 2.0**30))]
    for name in ("memory_mib", "memory_gib"):
        facts.pop(name, None)
    known = columns["memory_bytes"][~np.isnan(columns["memory_bytes"])]
    return max([*known, *(value for value in stated if value)], default=None)


def _missing_size(file: str, form: RunFormat, rates: Mapping[str, float]) -> tuple[str, str]:
    """Return why rates give no step times, and the option for the missing size. Raises UserError without rates."""
    if "samples_per_s" in rates:
        return f"{file} says samples a second and not how many a step has", "give --global-batch"
    for name, words, fix in (
        ("tokens_per_s", "tokens a second", "give --global-batch and --seq-len"),
        ("device_tokens_per_s", "tokens a second of a device", "give --cluster, --global-batch and --seq-len"),
    ):
        if name in rates:
            return f"{file} ({form.name}) says {words} and not how many a step has", fix
    raise UserError(f"{file} ({form.name}) has no step times", form.untimed)
