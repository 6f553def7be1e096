"""What a selection means: the values that predict takes; and no name opens a file or runs code."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.serve.configurations import Configurations
from paceline.serve.question import question


def test_a_selection_is_a_workload_a_cluster_and_a_strategy() -> None:
    chosen = {"workload": "GPT2 XL", "device": "H100", "devices-per-node": "4", "nodes": "2", "network": "100Gb/s"}
    asked = question({**chosen, "sharding": "zero2", "global-batch": "32"}, Configurations())
    assert (asked.workload.name, asked.cluster.world_size, asked.cluster.num_nodes) == ("gpt2-xl", 8, 2)
    assert (asked.strategy.parallelism.sharding.name, asked.strategy.global_batch_size) == ("zero2", 32)


def test_without_a_batch_it_is_the_most_that_fits() -> None:
    asked = question({"workload": "lenet5", "device": "A100"}, Configurations())
    assert asked.strategy.global_batch_size == 1024


def test_no_name_opens_a_file_or_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (
        "trap:main",
        "trap.py:Net",
        "trap.py",
        str(tmp_path),
        ".",
        "config.json",
        f"{tmp_path}/config.json",
        "~",
        "config:../x",
    ):
        with pytest.raises(UserError):
            question({"workload": name, "device": "A100"}, Configurations())
