"""Federations as files of Kueue and Slurm."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from market.sites import job, site
from paceline.errors import UserError
from paceline.market.rendering import render
from paceline.market.site import Federation


def federation(**north: object) -> Federation:
    limits = {"lends": 4, "borrows": 6, "notice_s": 90.0, **north}
    return Federation(
        sites=(site("north", [job("a", 0, 1)], "2x8xV100", **limits), site("south", [job("b", 0, 1, 4)], "1x4xT4"))
    )


def documents(text: str) -> list[dict[str, str]]:
    """Keys and values of each document, wherever they are nested: enough to check what is set."""
    found = []
    for part in text.split("---\n"):
        pairs = re.findall(r"^\s*(?:- )?([\w./-]+): ?(.*?)(?: #.*)?$", part, flags=re.M)
        found.append({key: value for key, value in pairs if value})
    return found


def test_kueue_has_a_queue_a_site_with_quota_and_limits() -> None:
    rendered = render(federation(), "kueue", "sharing")
    parts = documents(rendered.files["federation.yaml"])
    north, south = (part for part in parts if part["kind"] == "ClusterQueue")
    assert (north["paceline/site"], north["nominalQuota"], north["borrowingLimit"], north["lendingLimit"]) == (
        "north",
        "16",
        "6",
        "4",
    )
    assert north["reclaimWithinCohort"] == "Any" and south["reclaimWithinCohort"] == "Never"
    assert south["nominalQuota"] == "4" and "borrowingLimit" not in south and "lendingLimit" not in south
    assert {part["cohort"] for part in parts if part["kind"] == "ClusterQueue"} == {"sharing"}
    kinds = [part["kind"] for part in parts]
    assert kinds.count("ResourceFlavor") == 2 and kinds.count("LocalQueue") == kinds.count("Namespace") == 2
    assert any("terminationGracePeriodSeconds" in remark for remark in rendered.remarks)


def test_slurm_has_a_cluster_a_site_and_guests_that_give_way() -> None:
    files = render(federation(), "slurm", "sharing").files
    north, south = files["north/slurm.conf.part"], files["south/slurm.conf.part"]
    assert "ClusterName=north\n" in north and "PreemptMode=REQUEUE" in north and "GraceTime=90" in north
    assert "AllowAccounts=north PriorityTier=10" in north and "DenyAccounts=north PriorityTier=1 QOS=guests_north" in north
    assert "PreemptType=preempt/none" in south and "GraceTime" not in south
    script = files["accounting.sh"]
    assert "add federation sharing clusters=north,south" in script
    assert "add qos guests_north set GrpTRES=gres/gpu=4" in script and "add qos guests_south\n" in script
    assert "modify account where name=north cluster=south set GrpTRES=gres/gpu=6" in script
    shell = shutil.which("sh")
    assert shell
    checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["North", "a b", "x" * 80, "$(reboot)", "a;b", ""])
@pytest.mark.parametrize("target", ["kueue", "slurm"])
def test_names_that_a_target_does_not_take(name: str, target: str) -> None:
    with pytest.raises(UserError, match="is no name for"):
        render(federation(), target, name)


def test_what_a_target_cannot_express_is_refused() -> None:
    mixed = Federation(sites=(site("a", [job("a", 0, 1)], "1x8xV100 + 1x4xT4", lends=4),))
    with pytest.raises(UserError, match="Kueue limits each type by itself"):
        render(mixed, "kueue")
    with pytest.raises(UserError, match=r"unknown target 'kubernetes'.*kueue, slurm"):
        render(federation(), "kubernetes")
