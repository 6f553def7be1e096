"""Federations as files of Kueue and Slurm."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml

from market.sites import job, site
from paceline.errors import UserError
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.catalogue import devices
from paceline.market.federation.rendering import render, resource_of
from paceline.market.federation.site import Federation


def federation(**north: object) -> Federation:
    limits = {"lends": 4, "borrows": 6, "notice_s": 90.0, **north}
    return Federation(
        sites=(
            site("north", [job("a", 0, 1, device_types=("V100 SXM2 16GB",))], "2x8xV100", **limits),
            site("south", [job("b", 0, 1, 4)], "1x4xT4"),
        )
    )


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def queues(federation: Federation) -> dict[str, Any]:
    parts = documents(render(federation, "kueue", "sharing").files["federation.yaml"])
    return {part["metadata"]["name"]: part["spec"] for part in parts if part["kind"] == "ClusterQueue"}


def quotas(queue: Any) -> dict[str, dict[str, Any]]:
    """Of each flavor; every flavor lists just what its group covers, which Kueue demands."""
    found = {}
    for group in queue["resourceGroups"]:
        for flavor in group["flavors"]:
            assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]
            found[flavor["name"]] = flavor["resources"][0]
    return found


def test_kueue_has_a_queue_a_site_with_quota_and_limits() -> None:
    """Fields as Kueue's types have them (kubernetes-sigs/kueue, apis/kueue/v1beta2/clusterqueue_types.go)."""
    rendered = render(federation(), "kueue", "sharing")
    parts = documents(rendered.files["federation.yaml"])
    kinds = [part["kind"] for part in parts]
    assert kinds.count("ResourceFlavor") == 2 and kinds.count("LocalQueue") == kinds.count("Namespace") == 2
    assert {part["apiVersion"] for part in parts if part["kind"] != "Namespace"} == {"kueue.x-k8s.io/v1beta2"}
    both = queues(federation())
    north, south = both["north"], both["south"]
    assert {queue["cohortName"] for queue in both.values()} == {"sharing"}
    assert quotas(north) == {
        "v100-sxm2-16gb": {"name": "nvidia.com/gpu", "nominalQuota": 16, "borrowingLimit": 6, "lendingLimit": 4}
    }
    assert north["preemption"] == {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"}
    assert south["preemption"]["reclaimWithinCohort"] == "Never"
    # It borrows V100s, so it lists them although it has none: only what a queue lists can be borrowed.
    assert {name: quota["nominalQuota"] for name, quota in quotas(south).items()} == {"v100-sxm2-16gb": 0, "t4": 4}
    assert not any("borrowingLimit" in quota or "lendingLimit" in quota for quota in quotas(south).values())
    assert any("terminationGracePeriodSeconds" in remark for remark in rendered.remarks)
    # A pod that asks for what no queue covers is never admitted (kubernetes-sigs/kueue, issue 4848).
    assert any("put cpu and memory into its excludeResourcePrefixes" in remark for remark in rendered.remarks)


def test_kueue_counts_what_the_maker_s_plugin_counts() -> None:
    mixed = Federation(sites=(site("a", [job("a", 0, 1)], "1x8xMI300X"), site("b", [job("b", 0, 1)], "1x8xV100")))
    for queue in queues(mixed).values():
        assert sorted(group["coveredResources"] for group in queue["resourceGroups"]) == [["amd.com/gpu"], ["nvidia.com/gpu"]]
    known = {device.name: resource_of(device) for device in devices() if not device.name.startswith("IPU")}
    expected = {
        "T4": "nvidia.com/gpu",
        "MI300X": "amd.com/gpu",
        "RX 7900 XT": "amd.com/gpu",
        "TPU v5e": "google.com/tpu",
        "Gaudi 3": "habana.ai/gaudi",
        "Trainium 2": "aws.amazon.com/neuron",
        "Xeon Platinum 8380": "cpu",
    }
    assert expected.items() <= known.items()
    own = replace(device_named("T4"), name="A9", architecture="")  # its name says nothing about its maker
    with pytest.raises(UserError, match="no Kubernetes resource is known for 'A9'"):
        resource_of(own)
    assert resource_of(replace(own, kind="tpu")) == "google.com/tpu"


def test_kueue_counts_the_cores_of_a_cpu() -> None:
    pair = Federation(
        sites=(site("a", [job("a", 0, 1, 2)], "2x2xXeon", lends=3, borrows=1), site("b", [job("b", 0, 1, 1)], "1x1xXeon"))
    )
    quota = quotas(queues(pair)["a"])["xeon-platinum-8380"]
    assert quota == {"name": "cpu", "nominalQuota": 160, "borrowingLimit": 40, "lendingLimit": 120}
    assert any("put memory into" in remark for remark in render(pair, "kueue").remarks)


def test_a_queue_lists_its_own_devices_first() -> None:
    """whenCanBorrow is MayStopSearch where a queue does not say it: the first flavor that fits with borrowing is taken."""
    assert list(quotas(queues(federation())["south"])) == ["t4", "v100-sxm2-16gb"]


@pytest.mark.parametrize("name", ["2024", "on", "null", "1e3"])
def test_names_stay_text_in_yaml(name: str) -> None:
    text = render(Federation(sites=(site(name, [job("a", 0, 1)]),)), "kueue", name).files["federation.yaml"]
    _, queue, namespace, local = documents(text)
    named = (queue["spec"]["cohortName"], local["spec"]["clusterQueue"], local["metadata"]["namespace"])
    assert {*named, queue["metadata"]["name"], namespace["metadata"]["name"]} == {name}
    assert list(queue["spec"]["namespaceSelector"]["matchLabels"].values()) == [name]


def test_slurm_has_a_cluster_a_site_and_guests_that_give_way() -> None:
    rendered = render(federation(), "slurm", "sharing")
    files = rendered.files
    assert any("srun" in remark for remark in rendered.remarks)
    assert not any("srun" in remark for remark in render(federation(notice_s=math.inf), "slurm").remarks)
    north, south = files["north/slurm.conf.part"], files["south/slurm.conf.part"]
    assert "ClusterName=north\n" in north and "PreemptMode=REQUEUE\nJobRequeue=1\nKillWait=30\n" in north
    assert "AllowAccounts=north PriorityTier=10 PreemptMode=OFF " in north
    assert "DenyAccounts=north PriorityTier=1 QOS=guests_north PreemptMode=REQUEUE GraceTime=60 " in north
    assert "GresTypes=gpu\nAccountingStorageTRES=gres/gpu\n" in north
    assert "PreemptType=preempt/none\nPreemptMode=OFF\n" in south and "GraceTime" not in south and "KillWait" not in south
    script = files["accounting.sh"]
    assert "add federation sharing clusters=north,south" in script
    assert "add qos guests_north\n" in script and "add qos guests_south\n" in script
    # A slurmctld without its partitions' QOS does not start, and slurmdbd refuses a gres that none has counted yet.
    assert "GrpTRES" not in script
    limits = files["limits.sh"]
    assert "modify qos guests_north set GrpTRES=gres/gpu=4\n" in limits and "guests_south" not in limits
    assert "modify account where name=north cluster=south set GrpTRES=gres/gpu=6\n" in limits
    shell = shutil.which("sh")
    assert shell
    for each in (script, limits):
        checked = subprocess.run([shell, "-n"], input=each, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("notice_s", [0.0, 0.5, 12.0, 30.0, 90.5, 3600.0])
def test_guests_are_killed_within_the_notice(notice_s: float) -> None:
    """SIGKILL comes KillWait after the end of GraceTime, both in whole seconds (slurm.conf(5))."""
    part = render(federation(notice_s=notice_s), "slurm").files["north/slurm.conf.part"]
    waits = {key: int(re.search(rf"{key}=(\d+)", part)[1]) for key in ("KillWait", "GraceTime")}  # type: ignore[index]
    assert waits["KillWait"] <= 30 and sum(waits.values()) == int(notice_s)


@pytest.mark.parametrize("name", ["north-1", "6214e9", "2024", "_a", "x" * 40])
def test_names_that_slurm_takes(name: str) -> None:
    """Each was added to slurmdbd 22.05 as a cluster and as an account; one of 41 characters was refused."""
    files = render(Federation(sites=(site(name, [job("a", 0, 1)]),)), "slurm", name).files
    assert f"ClusterName={name}\n" in files[f"{name}/slurm.conf.part"]


@pytest.mark.parametrize("name", ["-a", "a.b", "all", "root", "x" * 41])
def test_names_that_slurm_does_not_take(name: str) -> None:
    with pytest.raises(UserError, match="is no name for a Slurm cluster"):
        render(Federation(sites=(site(name, [job("a", 0, 1)]),)), "slurm")


@pytest.mark.parametrize("name", ["North", "a b", "x" * 80, "$(reboot)", "a;b", ""])
@pytest.mark.parametrize("target", ["kueue", "slurm"])
def test_names_that_a_target_does_not_take(name: str, target: str) -> None:
    with pytest.raises(UserError, match="is no name for"):
        render(federation(), target, name)


def test_what_a_target_cannot_express_is_refused() -> None:
    mixed = Federation(sites=(site("a", [job("a", 0, 1)], "1x8xV100 + 1x4xT4", lends=4),))
    with pytest.raises(UserError, match="Kueue limits each type by itself"):
        render(mixed, "kueue")
    borrows = Federation(sites=(site("a", [job("a", 0, 1)], borrows=4), site("b", [job("b", 0, 1, 4)], "1x4xT4")))
    with pytest.raises(UserError, match="limits borrowing over 2 device types"):
        render(borrows, "kueue")
    (group,) = borrows.sites[1].fleet.groups
    renamed = group.cluster.changed(device=replace(group.cluster.device, name="v100-sxm2 16GB"))
    alike = replace(borrows.sites[1].fleet, groups=(replace(group, cluster=renamed),))
    with pytest.raises(UserError, match="has no distinct label in Kubernetes: 'v100-sxm2-16gb'"):
        render(Federation(sites=(site("a", [job("a", 0, 1)]), replace(borrows.sites[1], fleet=alike))), "kueue")
    for name in ("default", "kube-system", "kueue-system"):
        with pytest.raises(UserError, match="is a reserved name in Kubernetes"):
            render(Federation(sites=(site(name, [job("a", 0, 1)]),)), "kueue")
    with pytest.raises(UserError, match=r"unknown target 'kubernetes'.*kueue, slurm"):
        render(federation(), "kubernetes")
