"""The search of layouts: its ranking is that of the model over the whole space, and its counts add up."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.planning.search.layout_space import LayoutSpace
from paceline.planning.search.layouts import search_layouts
from paceline.planning.search.ranking import PLAIN
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.planning.search.tally import Exclusions
from paceline.prediction import Predictor
from paceline.strategy import Parallelism
from paceline.workload import Experts, TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=6, hidden=2048, heads=16, vocabulary=51200), 512, name="gpt-6x2048")
CLUSTER = Cluster.named("2x8 A100", network="8x InfiniBand HDR")
SPACE = LayoutSpace(
    batches=(32, 96),
    contexts=(1, 2),
    tensors=(1, 2, 8),
    pipelines=(1, 2, 3),
    virtual_stages=(1, 2),
    micro_batch_sizes=(1, 2),
    schedules=("1f1b", "gpipe", "zero_bubble"),
    sequences=(True, False),
    balanced=False,
    node_groups=False,
)
MORE = LayoutSpace(
    batches=(32, 96),
    tensors=(1, 2, 4),
    pipelines=(1, 2, 3),
    virtual_stages=(1, 2),
    micro_batch_sizes=(1, 2),
    schedules=("1f1b", "zero_bubble"),
    shardings=("ddp", "zero1", "zero3"),
    recomputes=("none", "selective:layernorm", "selective:mlp,layernorm", "full"),
)
MIXTURE = Workload.from_shape(
    TransformerShape(layers=4, hidden=2048, heads=16, vocabulary=8192, experts=Experts(count=8, active=2, ffn=4096)),
    512,
    name="mixture",
)
GROUPS = LayoutSpace(
    batches=(32, 96),
    tensors=(1, 2, 8),
    pipelines=(1, 2),
    virtual_stages=(1, 2),
    experts=(1, 4, 8),
    micro_batch_sizes=(1, 2),
    schedules=("1f1b", "zero_bubble"),
    shardings=("ddp", "zero1", "distributed_optimizer", "zero3"),
    recomputes=("none", "full"),
    balanced=False,
    node_groups=False,
)
ENDS = {(2, 1): (0, 2), (2, 2): (0, 2), (3, 1): (0, 1)}
"""The logits take the time of two blocks: a last stage of so many blocks works about as long as the others."""


def every_layout(space: LayoutSpace) -> list[Strategy]:
    """All legal ones, by trying every combination."""
    legal: dict[Strategy, None] = {}
    choices = itertools.product(
        space.batches,
        space.tensors,
        space.contexts,
        space.pipelines,
        space.virtual_stages,
        space.micro_batch_sizes,
        space.schedules,
        space.sequences,
        space.context_exchanges,
        space.shardings,
        space.recomputes,
        space.experts,
        (False, True) if space.balanced else (False,),
        (False, True) if space.node_groups else (False,),
    )
    for (
        batch,
        tensor,
        context,
        pipeline,
        virtual,
        micro,
        schedule,
        sequence,
        exchange,
        sharding,
        again,
        expert,
        *more,
    ) in choices:
        data, rest = divmod(CLUSTER.world_size, tensor * context * pipeline)
        if rest or tensor * context * pipeline == 1 or batch % (data * micro):
            continue
        ends = ENDS.get((pipeline, virtual), (0, 0)) if more[0] else (0, 0)
        group = CLUSTER.devices_per_node // tensor if more[1] else 0
        if group == 1 or group >= data * context or (group and sharding == "ddp"):
            continue
        try:
            mesh = Parallelism(
                data=data,
                tensor=tensor,
                context=context,
                pipeline=pipeline,
                virtual_stages=virtual,
                schedule=schedule,
                sequence=sequence and tensor > 1,
                context_exchange=exchange if context > 1 else "ring",
                sharding=sharding,
                shard_devices=group,
                first_stage_layers=ends[0],
                last_stage_layers=ends[1],
                recompute=again,
                expert=expert,
                micro_batches=batch // (data * micro),
            )
        except UserError:
            continue
        legal[Strategy(global_batch_size=batch, parallelism=mesh, precision="bf16", optimizer="adamw")] = None
    return list(legal)


@pytest.mark.long
@pytest.mark.everyday("workload0-space0-11000000000.0", "workload2-space2-4500000000.0")
@pytest.mark.parametrize(
    ("workload", "space", "memory"),
    [
        (MIXTURE, GROUPS, 11e9),
        (GPT, SPACE, 80e9),
        (GPT, MORE, 4.5e9),
        *(pytest.param(GPT, *case, marks=pytest.mark.full) for case in ((SPACE, 9e9), (MORE, 80e9), (MORE, 6e9))),
    ],
)
def test_the_ranking_is_that_of_every_layout_predicted_whole(workload: Workload, space: LayoutSpace, memory: float) -> None:
    device = replace(CLUSTER.device, memory=replace(CLUSTER.device.memory, value=memory))
    cluster = replace(CLUSTER, device=device)
    legal = every_layout(space)
    steps = Predictor().many(workload, [(cluster, s) for s in legal])
    assert not steps.refused
    hosts = SlowHosts.of(workload, Predictor()) if memory > 10e9 else None
    expected = hosts.of_candidates([(cluster, s) for s in legal], steps.step_s) if hosts else steps.step_s
    best: dict[tuple[int, ...], float] = {}
    for s, seconds, fits in zip(legal, expected.tolist(), steps.fits.tolist(), strict=True):
        mesh = s.parallelism
        division = s.global_batch_size, mesh.tensor, mesh.context, mesh.expert, mesh.pipeline
        score = seconds / s.global_batch_size * (1 + PLAIN * s.detours)
        if fits:
            best[division] = min(score, best.get(division, 1e9))
    answer = search_layouts(workload, cluster, space, keep=5, hosts=hosts)
    assert answer.legal == len(legal)
    assert answer.too_large <= int((~steps.fits).sum()) and (memory > 50e9 or answer.too_large > 0)
    assert answer.too_large + answer.bounded + answer.predicted == answer.legal
    assert answer.predicted < len(legal) / 4
    assert answer.considered == answer.legal + sum(answer.illegal.values())
    found = hosts.of_candidates(answer.candidates, answer.steps.step_s) if hosts else answer.steps.step_s
    scores = [
        seconds / s.global_batch_size * (1 + PLAIN * s.detours)
        for (_, s), seconds in zip(answer.candidates, found.tolist(), strict=True)
    ]
    assert scores[:5] == pytest.approx(sorted(best.values())[:5])  # the simplest that ties may follow


def test_a_search_is_counted_by_reason() -> None:
    answer = search_layouts(GPT, CLUSTER, replace(SPACE, tensors=(2, 3, 16)), keep=2)
    tally = Exclusions()
    answer.tally(tally)
    reasons = {group.reason: group.count for group in tally.excluded()}
    assert reasons["a tensor-parallel group lies within a node"] > 0
    assert reasons["the devices are no whole replicas of the divided network"] > 0
    assert sum(reasons.values()) + answer.too_large + answer.predicted == answer.considered


def test_what_is_tried_can_be_narrowed_and_must_be_legal() -> None:
    some = search_layouts(GPT, CLUSTER, replace(SPACE, micro_batches=(4,)), keep=3)
    assert {s.parallelism.micro_batches for _, s in some.candidates} == {4}
    lines: list[str] = []
    search_layouts(GPT, CLUSTER, SPACE, keep=1, progress=lines.append)
    assert any("legal layouts" in line for line in lines) and any("predicted whole" in line for line in lines)
    nothing = search_layouts(GPT, CLUSTER, replace(SPACE, batches=(7,), tensors=(1,), contexts=(1,)))
    assert not nothing.legal and nothing.candidates == () and len(nothing.steps.step_s) == 0
    refused = search_layouts(GPT, CLUSTER, replace(SPACE, tensors=(16,)))
    assert refused.legal == 0 and refused.considered == sum(refused.illegal.values()) > 0
    with pytest.raises(UserError, match="in tensors"):
        replace(SPACE, tensors=(0,))
    with pytest.raises(UserError, match="without a batch"):
        replace(SPACE, batches=())
