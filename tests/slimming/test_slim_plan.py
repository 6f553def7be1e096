"""Plans of slimmed networks as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens, unlike


def thirds(found: Structures) -> set[int]:
    return {each.number for every in found.layers().values() for each in every[: len(every) // 3]}


@pytest.mark.parametrize(("make", "example"), [(Residual, images), (Recurrent, tokens), (Transformer, tokens)])
def test_code_plan_and_weights_are_the_slimmed_network(
    make: Callable[[], nn.Module], example: Callable[[], tuple[Tensor, ...]], tmp_path: Path
) -> None:
    model, inputs = unlike(make()), example()
    found = structures_of(model, inputs)
    plan = SlimPlan.of(found, thirds(found))
    assert plan.removed(found) == thirds(found) and SlimPlan.of(found, ()).removed(found) == set()
    plan.save(tmp_path / "plan.json")
    small = shrunk(model, found, thirds(found))
    torch.save(small.state_dict(), tmp_path / "weights.pt")
    again = load(SlimPlan.load(tmp_path / "plan.json"), make())
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert differs(small, again, inputs) == 0.0
    assert SlimPlan.load(tmp_path / "plan.json") == plan and [file.name for file in tmp_path.iterdir()] != ["plan.json.draft"]


def test_a_plan_of_another_network_is_refused() -> None:
    model = Residual()
    plan = SlimPlan.of(found := structures_of(model, images()), thirds(found))
    with pytest.raises(UserError, match="the plan is of another network: this one has no "):
        load(plan, Recurrent())
    model.first = nn.Conv2d(8, 14, 3, padding=1)
    with pytest.raises(UserError, match=r"has first.weight of 14 x 8 x 3 x 3, the plan's is of 12 x 8 x 3 x 3"):
        load(plan, model)


def test_a_layer_keeps_something() -> None:
    found = structures_of(Residual(), images())
    with pytest.raises(UserError, match="nothing would be left of "):
        SlimPlan.of(found, {each.number for each in found.every})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 9}', '{"version": 1, "kept": 3, "heads": {}, "shapes": {}}'])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match=r"plan.json is (no plan|a plan of version 9)"):
        SlimPlan.load(tmp_path / "plan.json")
    with pytest.raises(UserError, match="cannot read"):
        SlimPlan.load(tmp_path / "none.json")
