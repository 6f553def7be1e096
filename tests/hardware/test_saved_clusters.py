"""The user's own clusters: written down, read back, and understood wherever a cluster is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.saved_clusters import (
    SavedCluster,
    clusters_file,
    forget_cluster,
    save_cluster,
    saved_cluster,
    saved_clusters,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_slip_of_a_saved_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save_cluster(SavedCluster("lab", "4x8 H100, 400Gb/s RoCE"))
    with pytest.raises(UserError, match=r"unknown cluster 'labb'; did you mean lab\?"):
        Cluster.named("labb")
    with pytest.raises(UserError, match="unknown device 'H1000'"):
        Cluster.named("H1000")
    with pytest.raises(UserError, match=facts("unknown device 'Quux'", "paceline hardware probe")):
        Cluster.named("Quux")


def test_nothing_is_saved_at_first() -> None:
    assert saved_clusters() == {}
    assert saved_cluster("lab") is None


def test_what_is_saved_is_read_back_in_any_case() -> None:
    entry = SavedCluster("lab", "4x8 H100, 400Gb/s RoCE", 2.5)
    assert save_cluster(entry) == clusters_file()
    assert saved_cluster("LAB") == entry


def test_a_saved_cluster_is_a_cluster_by_name() -> None:
    save_cluster(SavedCluster("lab", "4x8 H100, 400Gb/s RoCE"))
    assert Cluster.named("lab") == Cluster.named("4x8 H100", "400Gb/s RoCE")
    # another network for once
    assert Cluster.named("lab", "100Gb/s") == Cluster.named("4x8 H100", "100Gb/s")


def test_the_network_may_stand_behind_a_comma() -> None:
    assert Cluster.named("2x8 A100, 100Gb/s RoCE") == Cluster.named("2x8 A100", "100Gb/s RoCE")
    with pytest.raises(UserError, match="names a network, and so does '10Gb/s'"):
        Cluster.named("2x8 A100, 100Gb/s", "10Gb/s")


def test_comments_and_other_clusters_stay() -> None:
    file = clusters_file()
    file.parent.mkdir(parents=True)
    file.write_text("# ours\n[old]\ncluster = '8 A100'  # in the cellar\n")
    save_cluster(SavedCluster("lab", "8 H100"))
    assert "# ours" in file.read_text() and "# in the cellar" in file.read_text()
    forget_cluster("Lab")
    assert list(saved_clusters()) == ["old"]


def test_the_same_name_in_another_case_is_replaced() -> None:
    save_cluster(SavedCluster("lab", "8 H100", 1.0))
    save_cluster(SavedCluster("Lab", "16 H100"))
    assert list(saved_clusters().values()) == [SavedCluster("lab", "16 H100")]


@pytest.mark.parametrize("text", ["[lab", "lab = 3", "[lab]\ncluster = 8", "[lab]\ncluster = 'A100'\nusd_per_device_hour = -1"])
def test_a_damaged_file_is_named_and_kept(text: str) -> None:
    file = clusters_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UserError):
        save_cluster(SavedCluster("other", "8 A100"))
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["", "8 A100", "a b", "../x", "1lab"])
def test_a_name_of_other_characters_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cluster name"):
        save_cluster(SavedCluster(name, "8 A100"))


def test_forgetting_what_is_not_there_names_the_nearest() -> None:
    save_cluster(SavedCluster("lab", "8 A100"))
    with pytest.raises(UserError, match="lab"):
        forget_cluster("lob")


def test_a_folder_that_cannot_be_written_is_a_users_mistake(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    with pytest.raises(UserError, match="cannot"):
        save_cluster(SavedCluster("lab", "8 A100"))
