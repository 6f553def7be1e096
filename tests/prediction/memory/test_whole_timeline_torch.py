"""The order and the sizes of saved tensors against a real step of PyTorch on the processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline import Strategy, Workload
from paceline.memory_timeline import MemoryTimeline
from paceline.prediction import Predictor
from prediction_toys import make_cluster

torch = pytest.importorskip("torch", reason="needs torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

WIDTH, BLOCKS, BATCH = 64, 4, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.expand, self.act, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(self.act(self.expand(self.norm(x))))


class Network(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(32, WIDTH), nn.Linear(WIDTH, 16)
        self.blocks, self.again = nn.ModuleList(Block() for _ in range(BLOCKS)), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.again and self.training else block(x)
        return self.head(x)


class Saved:
    """A tensor that autograd has saved. It says when autograd drops it."""

    def __init__(self, tensor: torch.Tensor, dropped: Callable[[Saved], None]) -> None:
        self.tensor, self.dropped = tensor, dropped

    def __del__(self) -> None:
        self.dropped(self)


def real_levels(again: bool) -> list[tuple[str, int]]:
    """Bytes that autograd has saved after each change of one real step, and the pass. Parameters are left out."""
    network = Network(again)
    outside = {p.untyped_storage().data_ptr() for p in network.parameters()}
    held: dict[int, tuple[int, int]] = {}
    levels, phase = [], "forward"

    def change(tensor: torch.Tensor, by: int) -> None:
        storage = tensor.untyped_storage()
        if (place := storage.data_ptr()) not in outside:
            held[place] = held.get(place, (0, 0))[0] + by, storage.nbytes()
            levels.append((phase, sum(size for number, size in held.values() if number)))

    def pack(tensor: torch.Tensor) -> Saved:
        change(tensor, 1)
        return Saved(tensor, lambda saved: change(saved.tensor, -1))

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        loss = network(torch.randn(BATCH, 32)).sum()
        phase = "backward"
        loss.backward()
    return levels


def predicted(recompute: str) -> MemoryTimeline:
    table = Workload.trace(lambda: Network().eval(), torch.empty(1, 32), loss="mean")
    strategy = Strategy.of(world_size=1, global_batch_size=BATCH, optimizer="sgd", recompute=recompute)
    return Predictor().step(table, make_cluster(1, 1), strategy).memory_timeline()


def levels_of(t: MemoryTimeline) -> list[tuple[str, int]]:
    """Bytes of the activations of a timeline, as ``real_levels``."""
    alive, levels, middle = 0, [], next(p.start_s for p in t.passes if p.name == "backward")
    for at, a, begins in t.changes():
        if a.purpose == "activations":
            alive += round(a.bytes if begins else -a.bytes)
            levels.append(("forward" if at < middle else "backward", alive))
    return levels


def in_order(part: list[tuple[str, int]], whole: list[tuple[str, int]]) -> bool:
    """Return whether ``whole`` goes through all values of ``part`` in order."""
    rest = iter(whole)
    return all(value in rest for value in part)


def tops(levels: list[tuple[str, int]]) -> list[int]:
    """Local maxima of the backward pass with both expanded activations of a block."""
    sizes = [size for phase, size in levels if phase == "backward"]
    both = 2 * 4 * 4 * WIDTH * BATCH
    return [
        size for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False) if before < size > after and size > both
    ]


@pytest.mark.long
def test_a_real_step_saves_and_drops_what_the_timeline_shows() -> None:
    """To the byte and in the same order. The statistics of a norm are separate tensors in a real step."""
    real, t = real_levels(again=False), predicted("none")
    levels = levels_of(t)
    assert in_order(levels, real) and levels[-1] == real[-1] == ("backward", 0)
    assert max(levels, key=lambda level: level[1]) == max(real, key=lambda level: level[1])
    assert t.peak_pass == "forward" == max(real, key=lambda level: level[1])[0]


@pytest.mark.long
def test_a_real_step_with_checkpoints_is_fullest_in_its_last_block() -> None:
    """Each block in turn is saved again before its backward pass, and less is left below it."""
    real, t = real_levels(again=True), predicted("full")
    levels = levels_of(t)
    kept, of_model = (max(size for phase, size in own if phase == "forward") for own in (real, levels))
    assert kept <= of_model <= 1.05 * kept
    assert len(tops(real)) == len(tops(levels)) == BLOCKS
    for own, of_step in zip(tops(levels), tops(real), strict=True):
        assert of_step <= own <= 1.15 * of_step  # the prediction counts a second copy of the block's input
    assert t.peak_pass == "backward" and tops(real)[0] == max(size for _, size in real)
