"""The same groups in every step, however DDP cuts its buckets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.training.attach import bucketing
from paceline.training.attach.bucketing import Group, Groups
from paceline.training.attach.exchange_thread import promise
from paceline.training.exchanges.gradients.tensor_layout import numbered


class Bucket:
    """What a hook gets of DDP: parameters, and one buffer with their gradients."""

    def __init__(self, members: list[nn.Parameter]) -> None:
        self._members = members
        self._buffer = torch.cat([torch.full((p.numel(),), float(p.detach().reshape(-1)[0])) for p in members])

    def parameters(self) -> list[nn.Parameter]:
        return self._members

    def buffer(self) -> torch.Tensor:
        return self._buffer


def parameters(sizes: list[int]) -> list[nn.Parameter]:
    """Each with its own number as every value."""
    return [nn.Parameter(torch.full((size,), float(i))) for i, size in enumerate(sizes)]


def groups_of(members: list[nn.Parameter], cap: int, fused: bool = False) -> Groups:
    model: Any = SimpleNamespace(bucket_bytes_cap=cap, bucket_bytes_cap_default=False)
    return Groups(model, numbered((f"t{i}", p) for i, p in enumerate(members)), fused)


def step(groups: Groups, cut: list[list[nn.Parameter]]) -> list[Group]:
    handed: list[Group] = []
    for members in cut:
        bucket = Bucket(members)
        handed += groups.add(bucket, promise(bucket.buffer()))
    return handed


@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(4, 200), st.data())
def test_groups_follow_from_the_model_alone(sizes: list[int], cap: int, data: st.DataObject) -> None:
    members = parameters(sizes)
    groups = groups_of(members, cap)
    at_once = step(groups, [members])
    order = data.draw(st.permutations(members))
    ends = sorted(data.draw(st.sets(st.integers(1, len(sizes)))) | {len(sizes)})
    cut = [list(order[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    later = step(groups, cut)
    assert [[t.name for t in g.tensors] for g in later] == [[t.name for t in g.tensors] for g in at_once]
    assert [g.index for g in later] == list(range(len(later))) and [g.last for g in later] == [False] * (len(later) - 1) + [
        True
    ]
    for group in later:
        assert all((part == float(name[1:])).all() for name, part in group.parts.items())
    assert sum(len(g.finished) for g in later) == len(cut), "every bucket is finished with one group"
    assert [t.name for g in later for t in g.tensors] == [f"t{i}" for i in reversed(range(len(sizes)))]


def test_a_group_waits_for_its_last_tensor() -> None:
    members = parameters([10, 10, 10])
    groups = groups_of(members, 40)
    assert step(groups, [members[:1]]) == [], "the last tensors of the model come first"
    second = step(groups, [members[2:]])
    assert [[t.name for t in g.tensors] for g in second] == [["t2"]] and not second[0].last
    assert [g.index for g in step(groups, [members[1:2]])] == [1, 2]


@pytest.mark.parametrize("fused", [False, True])
def test_small_buckets_are_joined_where_asked(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "FUSE_BYTES", 100)
    groups = groups_of(parameters([10] * 6), 40, fused)
    assert [len(members) for members in groups.members] == ([3, 3] if fused else [1] * 6)
