"""The line of the user's that an exporter stopped at."""

from __future__ import annotations

import inspect
import statistics
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.slimming.export.export_failure import ExportFailure
from paceline.slimming.export.exporting import refused


class Mean(nn.Module):
    """Fails inside of a library, called by a helper."""

    def helper(self, x: Tensor) -> float:
        return statistics.mean(x.tolist())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.helper(x)


class Shapes(nn.Module):
    """Fails inside of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


def failure(model: nn.Module, x: Tensor, wrapped: bool = False) -> ExportFailure:
    try:
        try:
            model(x)
        except Exception as error:
            if not wrapped:
                raise
            raise RuntimeError("it failed\nmore") from error
    except Exception as error:
        return ExportFailure.of(error, model)
    raise AssertionError("it ran")


def line_of(kind: type[nn.Module], text: str) -> str:
    lines, first = inspect.getsourcelines(kind)
    file = Path(__file__)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}, line {first + next(number for number, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_innermost_line_outside_of_pytorch_is_found_and_all_modules_around_it(wrapped: bool) -> None:
    found = failure(nn.Sequential(nn.ReLU(), nn.Sequential(Shapes())), torch.ones(1, 4), wrapped)
    assert found.paths == ("1.0.inner", "1.0", "1", "") and found.module == "1.0.inner (Linear)"
    assert (found.code, found.where) == ("result: Tensor = self.inner(x)", line_of(Shapes, "self.inner(x)"))
    assert "shapes cannot be multiplied" in found.words
    says = f"Sequential is odd: 1.0.inner (Linear): `{found.code}` ({found.where}): {found.words}"
    assert found.refusal("is odd") == says


def test_a_line_of_the_user_comes_before_those_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.slimming.export.export_failure.LIBRARIES", statistics.__file__)
    found = failure(nn.Sequential(Mean()), torch.ones(0))
    assert (found.paths, found.code) == (("0", ""), "return statistics.mean(x.tolist())")
    assert found.where == line_of(Mean, "statistics.mean")
    monkeypatch.setattr("paceline.slimming.export.export_failure.LIBRARIES", ".py")
    assert failure(nn.Sequential(Mean()), torch.ones(0)).where.startswith(statistics.__file__), "there is no other"


def test_an_error_outside_of_the_forward_has_pytorch_s_words_alone() -> None:
    found = ExportFailure.of(ValueError("\n first \nsecond"), nn.ReLU())
    assert found.paths == () and found.refusal("cannot") == "ReLU cannot: first"


def test_what_can_be_done_depends_on_where_it_failed() -> None:
    try:
        nn.Sequential(Mean())(torch.ones(0))
    except statistics.StatisticsError as error:
        inner, own = refused(nn.Sequential(), "X", error), refused(nn.ReLU(), "X", error)
        model = nn.Sequential(Mean())
        assert "in your own loop" not in inner.fix + own.fix, "of another network"
        with pytest.raises(statistics.StatisticsError) as again:
            model(torch.ones(0))
        assert "in your own loop" in refused(model, "X", again.value).fix
