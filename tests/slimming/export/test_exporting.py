"""A file is written whole, agrees with its module, or is not there."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.export.exporting import checked_export, difference, refused, silent


def written(path: Path, apart: float = 0.0, fails: Exception | None = None) -> Path:
    model = nn.Dropout()

    def write(draft: Path) -> None:
        assert not model.training and draft != path
        draft.write_text("half")
        if fails:
            raise fails

    try:
        return checked_export(model, path, "A Runtime", write, lambda draft: apart)
    finally:
        assert model.training


def test_what_agrees_is_kept(tmp_path: Path) -> None:
    assert written(tmp_path / "new" / "net.pte") == tmp_path / "new" / "net.pte"
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["net.pte"]


@pytest.mark.parametrize("apart", [0.5, float("nan")])
def test_another_result_is_not_kept(apart: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A Runtime computes another result than Dropout: "):
        written(tmp_path / "net.pte", apart)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        written(tmp_path / "net.pte", fails=ValueError("odd"))
    with pytest.raises(UserError, match=r"cannot write .*net.pte: No space"):
        written(tmp_path / "net.pte", fails=OSError(28, "No space"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_its_runtime_refuses_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    def apart(draft: Path) -> float:
        raise RuntimeError("Input initial_c must have another shape\nand a trace")

    with pytest.raises(UserError, match="A Runtime does not run the exported Dropout: Input initial_c must have another shape"):
        checked_export(nn.Dropout(), tmp_path / "net.pte", "A Runtime", lambda draft: None, apart)
    assert not list(tmp_path.iterdir())


def test_an_exporter_s_error_is_one_line() -> None:
    assert str(refused(nn.ReLU(), "X", ValueError("\n first \nsecond"))) == (
        "ReLU cannot be exported to X: first; replace that operation"
    )
    assert "X: KeyError" in str(refused(nn.ReLU(), "X", KeyError()))


def test_the_difference_is_beside_the_largest_output() -> None:
    x = torch.tensor([1.0, -4.0])
    assert difference(nn.Identity(), (x,), [np.array([1.0, -3.0])]) == 0.25
    assert difference(nn.Identity(), (torch.zeros(2),), [np.zeros(2)]) == 0.0
    with pytest.raises(ValueError):
        difference(nn.Identity(), (x,), [])


def test_nothing_is_said_and_logging_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.root.handlers[:]
    with silent():
        print("steps")
        print("steps", file=sys.stderr)
        warnings.warn("steps", stacklevel=1)
        logging.root.addHandler(logging.NullHandler())
        logging.warning("steps")
    assert capsys.readouterr() == ("", "")
    assert logging.root.handlers == handlers and logging.root.manager.disable == logging.NOTSET
