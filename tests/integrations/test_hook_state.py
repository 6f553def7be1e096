"""States of a hook in files of each rank: read back, damaged, missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from paceline.errors import UserError
from paceline.integrations.hook_state import FILE, AnyHook, gathered, read_state, write_state


class Hook:
    """Keeps what it is given."""

    def __init__(self, rank: int) -> None:
        self.state: dict[str, Any] = {"rank": rank, "workers": 2, "residual": torch.full((3,), float(rank))}
        self.loaded: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Its own."""
        return self.state

    def load_state_dict(self, states: Any) -> None:
        """Keep them."""
        self.loaded = states


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the states of two ranks; this process is the second of two."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        write_state(cast(AnyHook, Hook(rank)), tmp_path / "checkpoint-4")
    return tmp_path / "checkpoint-4"


def test_a_rank_reads_its_own_state(ranks: Path) -> None:
    hook = Hook(1)
    read_state(cast(AnyHook, hook), ranks)
    assert [state["rank"] for state in hook.loaded] == [1]
    assert torch.equal(hook.loaded[0]["residual"], torch.ones(3))
    assert [path.suffix for path in ranks.iterdir()] == [".pt", ".pt"]


def test_another_number_of_ranks_reads_all_states(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for world, rank in ((1, 0), (3, 2)):
        monkeypatch.setattr(dist, "get_world_size", lambda world=world: world)
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        hook = Hook(rank)
        read_state(cast(AnyHook, hook), ranks)
        assert [state["rank"] for state in hook.loaded] == [0, 1]


def test_a_checkpoint_without_states_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    hook = Hook(0)
    read_state(cast(AnyHook, hook), tmp_path)
    assert hook.loaded is None and "has no state of a compression: residuals start at 0" in capsys.readouterr().err


def test_a_damaged_file_is_refused(ranks: Path) -> None:
    (ranks / FILE.format(1)).write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        read_state(cast(AnyHook, Hook(1)), ranks)


def test_a_folder_that_cannot_be_written_is_refused(ranks: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_state(cast(AnyHook, Hook(1)), tmp_path / "file")


def test_the_first_rank_gathers_all(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "gather_object", lambda own, every: every and every.__setitem__(slice(None), [own, own]))
    assert gathered(cast(AnyHook, Hook(1))) == []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert len(gathered(cast(AnyHook, Hook(0)))) == 2
