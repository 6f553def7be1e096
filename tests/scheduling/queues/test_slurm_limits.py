"""Limits that bind a job, from the order in Slurm's resource_limits.html."""

from __future__ import annotations

from paceline.scheduling.queues.slurm_limits import Bound, Limits, is_bounded, job_bounds, scope_text


def test_the_first_quality_of_service_hides_the_associations_and_groups_bind_at_each_level() -> None:
    """The page's example: MaxJobs of 20 in the partition's QOS and of 4 in the association is 20."""
    user = (("account", "lab", "user", "ann"), Limits(max_jobs_per_user=4, max_jobs=5))
    lab = (("account", "lab"), Limits(max_jobs=9, max_limit_s=60.0))
    none = (("qos", "normal"), Limits())
    plain = job_bounds([none], [user, lab], "ann", "lab")
    assert plain.bounds == (
        Bound(user[0], "jobs", 5),
        Bound(lab[0], "jobs", 9),
        Bound(user[0], "jobs", 4),
        Bound(lab[0], "seconds", 60.0),
    )
    assert plain.most_s == 60.0 and lab[0] in plain.scopes
    part = (("qos", "part"), Limits(max_jobs_per_user=20))
    found = job_bounds([part, none], [user, lab], "ann", "lab").bounds
    assert found[2] == Bound((*part[0], "user", "ann"), "jobs", 20)
    assert scope_text(found[2].scope) == "user ann of QOS part" and not is_bounded(none[1])
