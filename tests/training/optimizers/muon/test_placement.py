"""Parts of sharded tensors: as torch itself places them, on pretended ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from paceline.errors import UserError
from paceline.training.optimizers.muon.placement import box, elements, meet

PLACED: list[tuple[tuple[int, ...], list[Any]]] = [
    ((4,), [Shard(0)]),
    ((2, 3), [Replicate(), Shard(0)]),
    ((2, 3), [Shard(0), Shard(1)]),
    ((3, 2), [Shard(0), Shard(0)]),
    ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
]


class Sharded:
    """Stand-in of a DTensor, with the attributes that ``box`` reads."""

    def __init__(self, shape: tuple[int, ...], mesh: tuple[int, ...], placements: list[Any]) -> None:
        self.shape, self.placements = shape, placements
        self.device_mesh = SimpleNamespace(size=lambda i: mesh[i])


@pytest.mark.parametrize(("mesh", "placements"), PLACED)
def test_the_parts_are_those_of_torch(mesh: tuple[int, ...], placements: list[Any]) -> None:
    shape = (14, 9)
    for at in [(i, j)[: len(mesh)] for i in range(mesh[0]) for j in range(mesh[-1] if len(mesh) > 1 else 1)]:
        local, offset = _compute_local_shape_and_global_offset(shape, mesh, list(at), placements)
        found: Any = box(Sharded(shape, mesh, placements), at)  # type: ignore[arg-type]
        assert elements(found) == local[0] * local[1]
        if elements(found):
            assert found == tuple((o, o + n) for o, n in zip(offset, local, strict=True))


def test_meeting_parts() -> None:
    assert meet(((0, 4), (0, 3)), ((2, 9), (1, 2))) == ((2, 4), (1, 2))
    assert meet(((0, 4), (0, 3)), ((4, 9), (0, 3))) is None and elements(None) == 0


def test_a_sum_in_parts_is_refused() -> None:
    with pytest.raises(UserError, match="Shard and Replicate"):
        box(Sharded((4, 4), (2,), [SimpleNamespace(is_replicate=lambda: False)]), (0,))  # type: ignore[arg-type]
