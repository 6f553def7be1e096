"""What a run begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.models.vision.lenet import lenet5
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.tracing import structures_of
from paceline.training.runs.loop import classification_loss, distillation_loss
from paceline.training.runs.starting_model import build_model, starting_model, teacher_of
from training_jobs import job

SHAPE = (1, 1, 28, 28)


def saved(path: Path, model: nn.Module) -> str:
    torch.save(model.state_dict(), path)
    return str(path)


def test_weights_and_a_plan_make_the_starting_model(tmp_path: Path) -> None:
    whole = lenet5()
    found = structures_of(whole, (torch.randn(SHAPE),))
    plan = SlimPlan.of(found, {each.number for every in found.layers().values() for each in every[::2]})
    plan.save(tmp_path / "plan.json")
    run = job(tmp_path, model="lenet5", data="digits", start=saved(tmp_path / "whole.pt", whole))
    assert torch.equal(starting_model(run).conv2.weight, whole.conv2.weight)  # type: ignore[union-attr, arg-type]
    small = starting_model(job(tmp_path, model="lenet5", data="digits", start=run.start, plan=str(tmp_path / "plan.json")))
    assert small.conv2.weight.shape == (25, 10, 5, 5)  # type: ignore[union-attr]
    assert torch.equal(small.conv2.weight, whole.conv2.weight[1::2, 1::2])  # type: ignore[union-attr, index, arg-type]


def test_a_teacher_is_the_whole_network_without_gradients(tmp_path: Path) -> None:
    whole = lenet5()
    run = job(tmp_path, model="lenet5", data="digits", teacher=saved(tmp_path / "whole.pt", whole), distill=0.5)
    teacher = teacher_of(run)
    assert teacher is not None and not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    assert torch.equal(teacher(torch.ones(SHAPE)), whole.eval()(torch.ones(SHAPE)))
    assert teacher_of(job(tmp_path)) is None


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    other = saved(tmp_path / "other.pt", nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"the weights in .*other.pt are not lenet5's: Missing key"):
        starting_model(job(tmp_path, model="lenet5", data="digits", start=other))
    with pytest.raises(UserError, match=r"no weights in .*none.pt"):
        starting_model(job(tmp_path, model="lenet5", data="digits", start=str(tmp_path / "none.pt")))
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(UserError, match=r"text.pt cannot be read"):
        starting_model(job(tmp_path, model="lenet5", data="digits", start=str(tmp_path / "text.pt")))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UserError, match=r"list.pt holds no weights"):
        starting_model(job(tmp_path, model="lenet5", data="digits", start=str(tmp_path / "list.pt")))


TEMPERATURE = 4.0
"""Within what Hinton et al. 2015 use for networks of this size: 2.5 to 8."""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"teacher": "x.pt"}, "`teacher` without `distill`"),
        ({"distill": 0.5}, "`distill` without `teacher`"),
        ({"teacher": "x.pt", "distill": 1.5}, "a share of 1.5 of the teacher"),
    ],
)
def test_a_teacher_has_a_share(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        job(tmp_path, **changes)


def test_losses_of_sequences_and_of_a_teacher() -> None:
    output, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    expected = nn.functional.cross_entropy(output.reshape(15, 7), labels.reshape(15))
    assert torch.allclose(classification_loss(output, labels), expected)
    assert float(distillation_loss(output, output).abs()) < 1e-5
    taught = torch.randn(3, 5, 7)
    p, q = ((each / TEMPERATURE).softmax(-1) for each in (taught, output))
    assert torch.allclose(distillation_loss(output, taught), (p * (p / q).log()).sum(-1).mean() * TEMPERATURE**2, atol=1e-5)
    assert torch.equal(build_model("lenet5", 3).conv1.weight, build_model("lenet5", 3).conv1.weight)  # type: ignore[union-attr, arg-type]
