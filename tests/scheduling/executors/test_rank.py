"""torchrun's variables from Slurm's."""

from __future__ import annotations

import pytest

from paceline.scheduling.executors.rank import interface_to, tasks_per_node, torch_environment

SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "MASTER_ADDR": "10.77.0.1",
}


def test_a_rank_knows_its_place() -> None:
    given = torch_environment(SLURM)
    assert {name: given[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")} == {
        "RANK": "4",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
    }
    assert given["OMP_NUM_THREADS"] == "1" and torch_environment({**SLURM, "OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_every_start_has_a_port_of_its_own_that_all_its_ranks_agree_on() -> None:
    starts = [SLURM, {**SLURM, "SLURM_STEP_ID": "1"}, {**SLURM, "SLURM_RESTART_COUNT": "1"}, {**SLURM, "SLURM_JOB_ID": "13"}]
    ports = [torch_environment(start)["MASTER_PORT"] for start in starts]
    assert len(set(ports)) == 3 and all(20_000 <= int(port) < 30_000 for port in ports)  # a step or a restart more is the same
    assert torch_environment({**SLURM, "SLURM_PROCID": "0"})["MASTER_PORT"] == ports[0]


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2)", [1, 2, 2])])
def test_slurms_way_to_write_counts(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_the_interface_to_this_host_is_lo() -> None:
    assert interface_to("127.0.0.1").startswith("lo") and interface_to("not an address") == ""
