"""A network that several processes train becomes small as that of one does."""

from __future__ import annotations

import pytest

from distributed import launch_once
from slimming_shards import run


@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3])
def test_a_sharded_path_is_the_path_of_one_process(workers: int) -> None:
    for result in launch_once(run, workers):
        alone, small = result["alone"]
        assert int((alone["0.weight"].abs().sum(1) == 0).sum()) >= 8
        for kind in ("fsdp", "attached"):
            weights, shrunk = result[kind]
            for name, weight in alone.items():
                assert float((weights[name] - weight).abs().max()) < 1e-5, (kind, name)
                assert ((weights[name] == 0) == (weight == 0)).all(), (kind, name)
            for name, weight in small.items():
                assert weight.shape == shrunk[name].shape and float((shrunk[name] - weight).abs().max()) < 1e-5, (kind, name)


@pytest.mark.parametrize("workers", [2])
def test_ranks_decide_alike_and_a_sharded_network_is_whole_again(workers: int) -> None:
    for result in launch_once(run, workers):
        assert result["tied"] == (True, True)
        assert result["buffers"].tolist() == [1.0] * 7, "rank 0's, though each rank has its own"
        assert result["measured"] == [{"rank": 0}, "no budget; give one"]
        early, force = result["refused"]
        assert "sharded before it was traced; call `slim.check()` before `fully_shard`" in early
        assert "force needs whole weights" in force
