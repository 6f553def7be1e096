"""Methods for several sites as strategies."""

from __future__ import annotations

import pytest

from paceline.planning.compare.site_methods import SITE_METHODS
from paceline.strategy import Strategy

SITE = Strategy.of(world_size=8, global_batch_size=16, precision="bf16", sharding="zero3")


@pytest.mark.parametrize("method", SITE_METHODS, ids=lambda method: method.name)
def test_each_method_is_a_strategy_of_all_sites(method) -> None:  # type: ignore[no-untyped-def]
    muon = "optimizer" in method.choices  # it updates whole matrices
    strategy = method.on_sites(SITE.changed(sharding="ddp") if muon else SITE, 4, 30)
    assert (strategy.world_size, strategy.global_batch_size) == (32, 64)
    assert strategy.parallelism.shard_devices == (0 if muon else 8)
    assert strategy.sync_every == (30 if method.local else 1)
    assert strategy.worker_devices == (8 if method.local else 1)
    assert bool(method.source) == method.local
    assert strategy.local.sync_delay <= strategy.local.longest_delay


def test_names_and_letters_tell_methods_apart() -> None:
    assert len({m.name for m in SITE_METHODS}) == len({m.letter for m in SITE_METHODS}) == len(SITE_METHODS)
