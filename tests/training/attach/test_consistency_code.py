"""Ranks that run other code or were given other options are told what differs, before anything is exchanged."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import paceline
from distributed import launch
from paceline.errors import UserError
from paceline.training.attach import consistency


def ranks_with(rank: int, workers: int, name: str, values: list[str]) -> str:
    consistency.code_version = lambda: values[rank]  # type: ignore[assignment]
    try:
        if name == "code":
            consistency.agree(dist.group.WORLD, {"compression": "int8"}, [], 60)  # type: ignore[arg-type]
        else:
            consistency.same_everywhere(dist.group.WORLD, {name: values[rank]}, "give the same")
    except UserError as error:
        return str(error)
    return ""


def test_ranks_with_other_code_or_options_are_told_the_difference():
    for name, values, fix in (
        ("code", ["paceline 1 abc", "paceline 1 abd"], "install the same Paceline on every rank"),
        ("lr", ["0.1", "0.2"], "give the same"),
    ):
        expected = f"the ranks disagree on {name} (rank 0: {values[0]}; rank 1: {values[1]}); {fix}"
        assert launch(ranks_with, 2, name=name, values=values) == [expected] * 2


@pytest.mark.parametrize(
    ("everyone", "told"),
    [
        (
            [{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 1}],
            "lr (rank 0: 0.1; rank 1: 0.2), seed (rank 0: 0; rank 1: 1); give the same",
        ),
        (
            [{"lr": 0.2 if rank in (1, 2, 7) else 0.1} for rank in range(9)],
            "lr (ranks 0, 3-6, 8: 0.1; ranks 1, 2, 7: 0.2); give the same",
        ),
        (
            [{"lr": 0.1, "code": "a"}, {"code": "b"}],
            "code (rank 0: a; rank 1: b), lr (rank 0: 0.1; rank 1: not given); install the same Paceline on every rank",
        ),
    ],
)
def test_every_difference_is_told_with_the_ranks_that_share_a_value(
    everyone: list[dict[str, object]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group: len(everyone))
    monkeypatch.setattr(dist, "all_gather_object", lambda into, mine, group: into.__setitem__(slice(None), everyone))
    with pytest.raises(UserError) as raised:
        consistency.same_everywhere(None, everyone[0], "give the same")
    assert str(raised.value) == f"the ranks disagree on {told}"


def test_the_version_of_the_code_follows_from_every_file_of_it(tmp_path, monkeypatch):
    consistency.code_version.cache_clear()
    here = consistency.code_version()
    copy = tmp_path / "paceline"
    shutil.copytree(Path(paceline.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(consistency, "__file__", str(copy / "training" / "attach" / "consistency.py"))
    consistency.code_version.cache_clear()
    assert consistency.code_version() == here
    with (copy / "codecs" / "container.py").open("a") as file:
        file.write("#")
    consistency.code_version.cache_clear()
    assert consistency.code_version() != here
    monkeypatch.undo()
    consistency.code_version.cache_clear()


def test_the_version_of_a_users_module_needs_no_earlier_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = tmp_path / "module_of_a_user.py"
    seen = []
    for text in ("net = 1\n", "net = 2\n"):
        module.write_text(text)
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
        seen.append(consistency.module_version(f"{module.stem}:net"))
    assert all(seen) and seen[0] != seen[1]
    with pytest.raises(UserError, match="no module 'module_of_nobody'"):
        consistency.module_version("module_of_nobody:net")
