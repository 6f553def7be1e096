"""What ``attach`` refuses on an FSDP2 model, with what is legal; alike on every rank."""

from __future__ import annotations

import pytest

import sharded_models
from distributed import launch_once

SAID = {
    "powersgd": "powersgd works on whole matrices",
    "auto": "auto measures the steps of DistributedDataParallel only; name a compression",
    "allgather": "exchange 'allgather' has no reduce-scatter",
    "parameter server": "legal where gradients are shared out: allreduce, sharded, ring, hierarchical",
    "pull": "a reduce-scatter has no pull to send as fp32",
    "noise": "leave noise_scale out",
    "bits": "gather_bits=4; give 8, 16, or 0",
    "nodes": "2 owners in nodes of 3",
    "unequal": "the ranks disagree on seed (rank 0: 0; rank 1: 1)",
    "unknown": "unknown compression 'int9'; nearest: int8",
    "no root": "call fully_shard(model) last",
    "ddp gathers": "DistributedDataParallel gathers no weights",
}


@pytest.mark.parametrize("case", SAID)
def test_refused(case: str) -> None:
    for result in launch_once(sharded_models.refused, 2):
        assert SAID[case] in result[case]
