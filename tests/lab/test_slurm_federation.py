"""Real Slurm clusters in one federation on a lab: a site's jobs run on both, within what is lent. Needs root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paceline import lab
from paceline.errors import UserError
from paceline.lab import kernel, slurm_federation
from paceline.lab.slurm_federation import SlurmCluster, SlurmFederation
from paceline.lab.topology import topology

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def test_what_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setattr(kernel, "which", lambda tool: None if tool in ("slurmdbd", "mariadbd") else f"/usr/bin/{tool}")
    clusters = [SlurmCluster("a", (0,), 1, "")]
    with pytest.raises(
        UserError, match=r"slurmdbd \(slurmdbd\), mariadbd \(mariadb-server\); apt-get install mariadb-server slurmdbd"
    ):
        SlurmFederation(topology(2, "1Gb/s"), runtime, clusters)
    monkeypatch.setattr(kernel, "which", lambda tool: f"/usr/bin/{tool}")
    with pytest.raises(UserError, match="a cluster without hosts"):
        SlurmFederation(topology(2, "1Gb/s"), runtime, [SlurmCluster("a", (), 1, "")])


@pytest.mark.full
@pytest.mark.skipif(bool(lab.missing()), reason="needs root, ip and tc for a lab with links: apt-get install iproute2")
@pytest.mark.skipif(bool(slurm_federation.missing()), reason=f"needs {', '.join(slurm_federation.missing())}")
def test_six_jobs_run_across_both_and_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    import market_slurm

    monkeypatch.setattr(market_slurm, "SECONDS", 6)
    monkeypatch.setattr(market_slurm, "WORK", "sleep 6")
    rows = market_slurm.study(lends=2)
    assert len(rows) == 6 and {row["state"] for row in rows} == {"COMPLETED"}
    away = [row for row in rows if row["cluster"] == "south"]
    assert away and all(row["partition"] == "guests" and row["account"] == "north" for row in away)
    for one in away:  # two CPUs are lent at a time: one job
        assert not any(other is not one and abs(other["start_s"] - one["start_s"]) < 5 for other in away)
    moved = sum(row["credits_moved"] for row in rows)
    assert rows[0]["balance"] == f"north:{-moved:+d} south:{moved:+d}" and moved > 0
    assert f"fed{os.getpid()}" not in kernel.system(("ip", "netns", "list"))
