"""Settings, and names of Jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from live_jobs import training
from paceline.errors import UserError
from paceline.scheduling.executors.kubernetes.settings import MOST_NAME, KubernetesSettings, job_name


def settings(**more: Any) -> KubernetesSettings:
    return KubernetesSettings(**{"image": "i", "claim": "runs", "mount": "/data", **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"image": " "}, "no image for the pods; give `image`"),
        ({"claim": ""}, "is not a mounted volume; give `claim`, such as runs:/data"),
        ({"mount": "data"}, "'runs:data' is not a mounted volume"),
        ({"queue": "Team_1"}, "`queue` 'Team_1' is not a name on Kubernetes"),
        ({"resource": "nvidia com"}, "'nvidia com' is not a resource"),
    ],
)
def test_illegal_settings_are_refused(more: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        settings(**more)


def test_folders_of_a_job_are_on_the_volume() -> None:
    settings().check(training(Path("/data/runs"), directory="/data"))
    with pytest.raises(
        UserError, match=r"its checkpoint /else/job is not on the volume runs, mounted at /data; give a path below"
    ):
        settings().check(training(Path("/else"), directory="/data"))


def test_names_of_jobs_are_dns_labels_and_differ() -> None:
    names = [job_name(name, "s", 1) for name in ("a", "A", "a.b", "a-b", "x" * 63, "9")]
    assert len(set(names)) == 6 and all(len(name) <= MOST_NAME and name == name.lower() for name in names)
    assert all(name[0].isalpha() for name in names)  # as names of Services are
    assert job_name("a", "s", 1) != job_name("a", "t", 1) != job_name("a", "t", 2)
