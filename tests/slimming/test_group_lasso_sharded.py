"""Structures vanish alike where parameters lie in shards, and where gradients go through ``attach``."""

from __future__ import annotations

import pytest

from distributed import launch_once
from slimming_shards import run


@pytest.mark.parametrize("workers", [2, 3])
def test_a_sharded_path_is_the_path_of_one_process(workers: int) -> None:
    for result in launch_once(run, workers):
        alone = result["alone"]
        assert int((alone["0.weight"].abs().sum(1) == 0).sum()) >= 8
        for kind in ("fsdp", "attached"):
            for name, weight in alone.items():
                assert float((result[kind][name] - weight).abs().max()) < 1e-5, (kind, name)
                assert ((result[kind][name] == 0) == (weight == 0)).all(), (kind, name)
