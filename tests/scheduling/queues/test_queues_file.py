"""Files of settings, in the forms that operators have."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.queues.queues_file import parse_queues, read_queues
from paceline.scheduling.queues.slurm_limits import DeviceLimits, Limits
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings

SLURM = """
scheduler = "slurm"
weight_fairshare = 1000
half_life = "7d"
window = 3600
[accounts.vision]
shares = 3
users = { ann = 1 }
[qos.high]
preempts = ["normal"]
[usage.vision]
ann = 7200
"""
KUEUE = """
scheduler = "kueue"
fair_sharing = true
local_queues = { team = "a" }
[queues.a]
cohort = "all"
quotas.A100 = { nominal = 8, borrowing_limit = 4 }
"""
YAML = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: a}
spec:
  resourceGroups:
  - coveredResources: ["nvidia.com/gpu"]
    flavors: [{name: T4, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]
"""


def test_each_form_is_read(tmp_path: Path) -> None:
    (tmp_path / "slurm.toml").write_text(SLURM)
    assert read_queues(tmp_path / "slurm.toml") == SlurmSettings(
        weight_fairshare=1000,
        half_life_s=7 * 86400,
        window_s=3600,
        accounts={"vision": Account(shares=3, users={"ann": 1})},
        qos={"high": Qos(preempts=("normal",))},
        usage={("vision", "ann"): 7200},
    )
    assert parse_queues(KUEUE, ".toml") == KueueSettings(
        queues={"a": ClusterQueue(cohort="all", quotas={"A100": Quota(nominal=8, borrowing_limit=4)})},
        local_queues={"team": "a"},
        fair_sharing=True,
    )
    assert parse_queues(YAML) == KueueSettings(queues={"a": ClusterQueue(quotas={"T4": Quota(nominal=4)})})
    assert parse_queues("PriorityType = priority/multifactor\nPriorityWeightAge = 5\n") == SlurmSettings(weight_age=5)


def test_limits_of_slurm_in_toml() -> None:
    found = parse_queues(
        "root.max_jobs = 9\n[accounts.lab.user_limits.ann]\nmax_jobs = 0\n[qos.high]\nmax_limit = '2h'\n"
        "[qos.high.of_type.a100]\nmax_devices_per_user = 4\n[partitions.gpu]\nqos = 'high'\n",
        ".toml",
    )
    assert found == SlurmSettings(
        root=Limits(max_jobs=9),
        accounts={"lab": Account(user_limits={"ann": Limits(max_jobs=0)})},
        qos={"high": Qos(max_limit_s=7200, of_type={"a100": DeviceLimits(max_devices_per_user=4)})},
        partitions={"gpu": SlurmPartition(qos="high")},
    )


@pytest.mark.parametrize(
    ("text", "suffix", "says"),
    [
        ("scheduler = 'pbs'", ".toml", "unknown scheduler 'pbs'"),
        ("weight_ages = 1", ".toml", "did you mean weight_age"),
        ("weight_age = 'much'", ".toml", "weight_age is 'much'"),
        ("scheduler = 'kueue'\n[queues.a]\nquotas.A100 = 8", ".toml", "queues.a.quotas.A100 is 8"),
        ("usage.vision.ann = 'x'", ".toml", "usage.vision.ann is 'x'"),
        ("usage.vision.ann = -5", ".toml", "usage.vision.ann is -5"),
        ("accounts.vision.shares = -1", ".toml", "accounts.vision: shares is -1"),
        ("accounts.vision.users = 5", ".toml", "accounts.vision: users is 5"),
        ("accounts.vision.users = { ann = 'x' }", ".toml", "users.ann is 'x'.*number from 0 up"),
        ("accounts.vision.max_devices = true", ".toml", "max_devices is True.*whole number from 0 up"),
        ("qos.high.preempts = 'normal'", ".toml", "qos.high: preempts is 'normal'.*a list"),
        ("partitions.gpu.types = [1]", ".toml", "partitions.gpu: types is .*a list"),
        ("accounts.lab.user_limits.ann.max_job = 1", ".toml", "accounts.lab.user_limits.ann.*did you mean max_jobs"),
        ("accounts.lab.max_devices_per_user = 1", ".toml", "max_devices_per_user of an account"),
        ("preempt = 'never'", ".toml", "preempt 'never'; legal: none, partition_prio, qos"),
        ("half_life = 'long'", ".toml", "half_life.*'long'"),
        ("scheduler = 'kueue'\n[queues.a]\nquotas.T4.borrowing_limit = 1.5", ".toml", "borrowing_limit is 1.5"),
        ("{", "", "neither JSON nor YAML"),
        ("kind: [", "", "not YAML"),
        ("nothing", "", "no setting of Slurm"),
    ],
)
def test_what_is_wrong_is_named(text: str, suffix: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_queues(text, suffix)
