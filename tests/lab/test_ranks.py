"""What one rank of a command is given: torchrun's environment, and its own words."""

from __future__ import annotations

import os

import pytest

from paceline.lab.ranks import Host, environment, fill

HOSTS = [Host(0, "10.77.0.1", "pl0"), Host(1, "10.77.0.2", "pl0")]


def test_the_environment_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    variables = environment(HOSTS, 2, 2, 29_500)
    expected = {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "pl0",
        "NCCL_SOCKET_IFNAME": "pl0",
    }
    assert expected.items() <= variables.items()
    assert int(variables["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(HOSTS, 0, 1, 1)["OMP_NUM_THREADS"] == "3"


def test_only_the_three_words_are_replaced() -> None:
    words = ["{rank}/{hosts}", "--to={address}", '{"rank": {x}}', "{}", "{host}"]
    assert fill(words, 1, 4, "10.77.0.2") == ["1/4", "--to=10.77.0.2", '{"rank": {x}}', "{}", "{host}"]
