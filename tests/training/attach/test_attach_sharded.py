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
    "bits": "gather_bits=4; give one of 0, 8, 16, 32",
    "more bits": "gather_bits=32 of weights that are gathered in 16, as bfloat16; leave gather_bits out",
    "groups of one": "2 copies in groups of one rank, which share nothing out; give sharding ddp",
    "nodes": "2 owners in nodes of 3",
    "unequal": "the ranks disagree on seed (rank 0: 0; rank 1: 1)",
    "unknown": "unknown compression 'int9'; nearest: int8",
    "no root": "call fully_shard(model) last",
    "ddp gathers": "DistributedDataParallel gathers no weights",
    "compressions": "the ranks disagree on gradient exchange (rank 0: compression int4, dense_rule.last_layer True; "
    "rank 1: compression int8, dense_rule.last_layer False); call attach() with the same arguments on every rank",
    "options": "on exchange (rank 0: sharded; rank 1: ring), gradient exchange (rank 0: exchange sharded, options.block 64; "
    "rank 1: exchange ring, options.block 128), options (rank 0: block 64; rank 1: block 128); "
    "call attach() with the same arguments on every rank",
    "twice": "this model has a communication hook already; attach once, right after fully_shard",
    "own reduce-scatter": "this model has a communication hook already: OwnReduceScatter; attach once",
    "child": "this Sequential is a part of a sharded model: it is 2 of Sequential. The other parts would be sent dense; "
    "attach to the model on which fully_shard was called last",
    "child, before its root": "this Linear is a part of a sharded model: it is 0 of Sequential.",
    "sparse embedding": "0: sparse gradients cannot be exchanged here; build the layer with sparse=False",
    "sparse lookup": "rows has a sparse gradient, which cannot be exchanged here; call F.embedding with sparse=False",
    "unfrozen 0.weight": "0.weight: frozen or not there when attach was called, trained now. It is not compressed; set "
    "requires_grad before",
    "unfrozen 2.0.bias": "2.0.bias: frozen or not there when attach was called, trained now. It is not compressed; set "
    "requires_grad before",
}


@pytest.mark.parametrize("case", SAID)
def test_refused(case: str) -> None:
    for result in launch_once(sharded_models.refused, 2):
        assert SAID[case] in result[case]
