"""What a choice declares that it affects is what changes in predictions when it changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.strategy.strategy import CHOICES
from paceline.workload import Workload

JOBS: dict[str, list[dict[str, Any]]] = {
    "resnet-50": [{}, {"compression": "topk"}, {"compression": "int8", "exchange": "sharded"}, {"precision": "bf16"}],
    "gpt2": [
        {"compression": "terngrad"},
        {"compression": "powersgd"},
        {"exchange": "parameter_server"},
        {"compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2},
        {"compression": "inceptionn", "exchange": "ring"},
        {"sharding": "zero3", "precision": "bf16", "gather_bits": 8},
        {"sharding": "zero1"},
        {"precision": "bf16"},
        {"tensor": 2, "recompute": "full"},
        {"sharding": "zero1", "global_batch_size": 8, "recompute": "full", "loss": "cut", "bucket_bytes": 1 << 34},
        {"pipeline": 2, "grad_accum_steps": 4},
        {"pipeline": 4, "grad_accum_steps": 4},
        {"context": 2},
        {"offload": "activations"},
        {"sync_every": 8, "compression": "int8"},
        {"sync_every": 8, "sync_delay": 2, "compression": "topk"},
        {"sync_every": 8, "round_deadline_s": 0.0, "compression": "topk"},
    ],
    "mixtral-8x7b": [{"expert": 4, "grad_accum_steps": 2}],
}
VALUES: dict[str, tuple[object, ...]] = {
    "options": ({"density": 0.01}, {"rank": 8}),
    "clip": (3.0,),
    "dense_rule": ({"min_elements": 10**6, "names": (), "last_layer": True},),
    "first_bucket_bytes": (20 << 20,),
    "bucket_bytes": (100 << 20,),
    "expert": (2,),
    "loss": ("chunked", "cut"),
    "sharding": ("zero1", "zero2"),
    "shard_devices": (4,),
    "schedule": ("gpipe", "zero_bubble"),
    "compression": ("int8",),
    "exchange": ("ring",),
    "gather_bits": (16, 32),
    "fragments": (2,),
    "outer_lr": (1.0,),
    "outer_momentum": (0.0,),
    "mixing": (0.25,),
    "worker_devices": (2,),
    "round_deadline_s": (0.0, 5.0),
    "global_batch_size": (128,),
    "codec_at": ("host", "nic"),
    "update": ("fused", "in_backward"),
}
"""Values to try, where the example of the choice is its usual value or does not go with the jobs."""
OF_PEERS = {"round_deadline_s", "max_age"}
"""Choices that are tried where late peers are left behind: who is late follows from the seconds, and the bytes from that."""
OF_CLUSTER = {"world_size"}
"""Choices that follow from the cluster: with another value the job does not run there."""


def predicted(job: Workload, cluster: Cluster, strategy: Strategy) -> dict[str, float]:
    step = Predictor().step(job, cluster, strategy)
    return {"bytes": step.wire_bytes_per_device, "time": step.step_time_s, "memory": step.memory_bytes}


def pairs() -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Choice, figures before, and figures after it has changed."""
    cluster = Cluster.named("2x4 A100, 100Gb/s")
    for network, jobs in JOBS.items():
        workload = Workload.named(network)
        for job in jobs:
            strategy = Strategy.of(**{"world_size": 8, "global_batch_size": 64, **job})
            before = predicted(workload, cluster, strategy)
            for name, item in CHOICES.items():
                if name in OF_CLUSTER or (strategy.local.round_deadline_s is not None and name not in OF_PEERS):
                    continue
                for value in VALUES.get(name) or (item.values.parse(item.example, item.word),):
                    try:
                        changed = strategy.changed(**{name: value})
                        after = predicted(workload, cluster, changed)
                    except UserError:  # the job cannot have the value
                        continue
                    if changed != strategy:
                        yield name, before, after


def test_a_choice_changes_what_it_says_and_nothing_else() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for name, before, after in pairs():
        seen[name] |= {figure for figure in before if before[figure] != after[figure]}
    figures = {"bytes", "time", "memory"}
    assert seen == {name: figures & set(item.affects) for name, item in CHOICES.items() if name not in OF_CLUSTER}
