"""Names of device types in logs and files mean the types of the cluster."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.traces.record import JobLog, LoggedJob
from paceline.scheduling.traces.trace import Trace, trace_of_log
from paceline.scheduling.traces.type_names import on_types, types_meant

TYPES = ("A100 SXM 40GB", "V100 SXM2 32GB", "T4", "RTX 2080 Ti", "A10")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A100", "A100 SXM 40GB"),
        ("nvidia_a100", "A100 SXM 40GB"),
        ("A100 80GB", ""),
        ("A100-SXM4-80GB", ""),
        ("V100 32GB", "V100 SXM2 32GB"),
        ("V100 16GB", ""),
        ("Tesla-T4", "T4"),
        ("rtx_2080_ti", "RTX 2080 Ti"),
        ("a10", "A10"),
        ("MISC", ""),
        ("", ""),
    ],
)
def test_a_name_means_the_types_of_the_cluster(name: str, meant: str) -> None:
    assert types_meant(name, TYPES) == ((meant,) if meant else ())


def test_an_alias_means_its_device_before_a_variant() -> None:
    assert types_meant("a100", ("A100 SXM 40GB", "A100 SXM 80GB")) == ("A100 SXM 80GB",)
    own = Trace((Job(name="a", duration_s=1, device_types=("a100", "G9")),), ())
    assert on_types(own, TYPES).jobs[0].device_types == ("A100 SXM 40GB", "G9")


@pytest.mark.parametrize(
    ("name", "devices", "types", "expected"),
    [
        ("nvidia_a100 1g.5gb", 1, TYPES, (1, 1 / 7, ("A100 SXM 40GB",))),
        ("a100 3g.20gb", 1, TYPES, (1, 1 / 2, ("A100 SXM 40GB",))),
        ("a100 7g.40gb", 2, TYPES, (2, 1, ("A100 SXM 40GB",))),
        ("a100 2g.10gb", 3, TYPES, (1, 6 / 7, ("A100 SXM 40GB",))),
        ("a100 3g.20gb", 3, TYPES, (2, 1, ("A100 SXM 40GB",))),
        ("1g.5gb", 1, TYPES, (1, 1 / 7, ())),
        ("a100 1g.5gb", 3, (*TYPES, "A100 1g.5gb"), (3, 1, ("A100 1g.5gb",))),
        ("a100", 3, ("A100 1g.5gb",), (3, 1, ("a100",))),
    ],
)
def test_slices_are_types_of_the_cluster_or_shares(
    name: str, devices: int, types: tuple[str, ...], expected: tuple[int, float, tuple[str, ...]]
) -> None:
    own = Trace((Job(name="a", duration_s=1, devices=devices, device_types=(name,)),), ())
    (job,) = on_types(own, types).jobs
    assert (job.devices, job.share, job.device_types) == (expected[0], pytest.approx(expected[1]), expected[2])


def test_jobs_of_a_log_on_other_types_are_left_out_and_counted() -> None:
    ran = [
        LoggedJob(name=name, state="ended", submit_s=0, start_s=1, end_s=2, run_s=1, devices=1, device_types=types)
        for name, types in (("a", ("t4",)), ("b", ()), ("c", ("P40",)))
    ]
    trace = trace_of_log(JobLog(jobs=tuple(ran)))
    left = on_types(trace, TYPES)
    assert [(job.name, job.device_types) for job in left.jobs] == [("a", ("T4",)), ("b", ())]
    assert left.notes[0] == "1 of 3 jobs left out: they ran on P40, which the cluster lacks."
    assert [row.name for row in left.skipped] == ["c"] and len(left.waits) == len(left.places) == 2
    assert [job.device_types for job in on_types(trace, TYPES, any_type=True).jobs] == [()] * 3
    with pytest.raises(UserError, match="the 1 jobs ran on P40, and the cluster has T4"):
        on_types(trace_of_log(JobLog(jobs=(ran[2],))), ("T4",))
