"""``EnergyGuard``: whose loss it names, from which share on, and in which steps."""

from __future__ import annotations

import pytest
import torch

from paceline import codecs
from paceline.training.exchanges.gradients.energy_guard import EnergyGuard
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, Layout, TensorSpec


def test_a_codec_that_keeps_too_little_names_layer_and_remedy(logged):
    guard = EnergyGuard("use inceptionn-scaled")
    layout = Layout(
        [TensorSpec("small.weight", (500,), 0), TensorSpec("large.weight", (500,), 500), TensorSpec("zero", (9,), 1000)], ()
    )
    values = torch.cat([torch.full((500,), 1e-5), torch.full((500,), 0.3), torch.zeros(9)])
    parts = [GradientSlice(piece, values[piece.start : piece.stop]) for piece in layout.packed(0, 1009)]
    for step in (0, 1, 100):
        guard.watch(codecs.get("inceptionn"), parts, step)
    (said,) = logged
    assert said.startswith("small.weight: inceptionn keeps 0 % of this gradient's energy at step 0; use inceptionn-scaled")
    guard.watch(codecs.get("int8"), parts, 0)
    assert logged == [said]


@pytest.mark.parametrize(("sent", "warned"), [(51, False), (49, True)])
def test_the_guard_warns_where_less_than_half_of_the_energy_arrives(sent: int, warned: bool) -> None:
    """Number sent of a hundred nearly equal values: as many percent of the energy are kept."""
    values = torch.cat([torch.full((sent,), 1.001), torch.ones(100 - sent)])
    (piece,) = Layout([TensorSpec("a.weight", (100,), 0)], ()).packed(0, 100)
    guard = EnergyGuard("use another")
    guard.watch(codecs.get("topk", density=sent / 100), [GradientSlice(piece, values)], 0)
    assert (list(guard.warned) == ["a.weight"]) == warned


@pytest.mark.parametrize(("step", "looks"), [(0, True), (1, False), (50, False), (99, False), (100, True)])
def test_the_guard_looks_at_every_hundredth_step(step: int, looks: bool) -> None:
    (piece,) = Layout([TensorSpec("a.weight", (100,), 0)], ()).packed(0, 100)
    guard = EnergyGuard("use another")
    guard.watch(codecs.get("inceptionn"), [GradientSlice(piece, torch.full((100,), 1e-5))], step)
    assert bool(guard.warned) == looks
