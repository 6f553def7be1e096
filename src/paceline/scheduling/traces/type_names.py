"""Device types that jobs name, as the types of a cluster: ``a100``, ``A100`` and ``nvidia_a100`` are its ``A100 SXM 80GB``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from paceline.errors import UserError, shorten
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.job import Job
from paceline.scheduling.traces.logs.gres import split_slice
from paceline.scheduling.traces.record import SkippedRow
from paceline.scheduling.traces.trace import Trace

_WORD = re.compile(r"[a-z]+\d+[a-z]*\d*[a-z]*|\d+[a-z]+|[a-z]+|\d+")
_VENDORS = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "intel", "habana"})


def types_meant(name: str, types: Sequence[str]) -> tuple[str, ...]:
    """Return the types of a cluster that a name means; empty if it lacks them.

    A name of the catalogue, or an alias, means its device. If the cluster lacks that, a short name means every variant:
    ``A100`` is any A100 of the cluster, also one of 40 GB.
    """
    if name in types:
        return (name,)
    if is_device(name) and device(name).name in types:
        return (device(name).name,)
    words, profile = _words(name), split_slice(name)[1]
    return tuple(each for each in types if words and words <= _words(each) and split_slice(each)[1] == profile)


def with_slices(job: Job, types: Sequence[str]) -> Job:
    """Return a job on MIG slices with the cluster's type of slice. Without one, it holds a share of a whole device.

    Several slices that fit one device are one share, others as many devices as they fill.
    """
    base, profile, share = split_slice(job.device_types[0]) if len(job.device_types) == 1 else ("", "", 1.0)
    if not profile or types_meant(job.device_types[0], types):
        return job
    total = job.devices * share
    devices = max(1, math.ceil(total - 1e-9))
    return replace(job, devices=devices, share=min(total, 1.0) if devices == 1 else 1.0, device_types=(base,) if base else ())


def with_types(jobs: Sequence[Job], types: Sequence[str]) -> tuple[Job, ...]:
    """Return the jobs with the cluster's names of their device types. Names of types that it lacks stay as they are."""
    named: dict[tuple[str, ...], tuple[str, ...]] = {}
    made = []
    for job in jobs:
        if not job.device_types or set(job.device_types) <= set(types):
            made.append(job)
            continue
        if job.device_types not in named:
            meant = [found or (name,) for name in job.device_types for found in (types_meant(name, types),)]
            named[job.device_types] = tuple(dict.fromkeys(name for found in meant for name in found))
        made.append(replace(job, device_types=named[job.device_types]))
    return tuple(made)


def on_types(trace: Trace, types: Sequence[str], any_type: bool = False) -> Trace:
    """Return a trace for a cluster of some device types. Jobs of a log on other types are left out.

    Args:
        any_type: let every job use every type, whatever it names.

    Raises:
        UserError: all jobs of a log are on types that the cluster lacks.
    """
    if any_type:
        return replace(trace, jobs=tuple(replace(with_slices(job, ()), device_types=()) for job in trace.jobs))
    jobs = with_types([with_slices(job, types) for job in trace.jobs], types)
    if not trace.is_log:
        return replace(trace, jobs=jobs)
    stays = [not job.device_types or not set(types).isdisjoint(job.device_types) for job in jobs]
    if all(stays):
        return replace(trace, jobs=jobs)
    missing = Counter(" or ".join(job.device_types) for job, stay in zip(jobs, stays, strict=True) if not stay)
    if not any(stays):
        names = shorten(", ".join(missing), 80)
        what = f"the {len(jobs):,} jobs ran on {names}, and the cluster has {', '.join(types)}"
        raise UserError(what, "give a cluster with these types, or let jobs use every type with `any_type`")
    skipped = [
        SkippedRow(place, job.name, f"ran on {' or '.join(job.device_types)}, which the cluster lacks")
        for job, place, stay in zip(jobs, trace.places, stays, strict=True)
        if not stay
    ]
    notes = [
        f"{count:,} of {trace.rows:,} jobs left out: they ran on {name}, which the cluster lacks."
        for name, count in missing.items()
    ]
    return replace(
        trace,
        jobs=tuple(compress(jobs, stays)),
        places=tuple(compress(trace.places, stays)),
        waits=tuple(compress(trace.waits, stays)),
        skipped=(*trace.skipped, *skipped),
        notes=(*notes, *trace.notes),
    )


def _words(name: str) -> frozenset[str]:
    """Return the words of a name, without its vendor."""
    return frozenset(_WORD.findall(name.casefold())) - _VENDORS
