"""The work of a worker: what can be known to fail is said before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.training.runs import worker
from training_jobs import MODEL, job


@pytest.mark.parametrize(
    ("optimizer", "given", "words"),
    [("lars", "ml-perf", "'mlperf'"), ("lars", "nvlamb", "one of LAMB"), ("lamb", "pap", "'paper'")],
)
def test_an_unknown_variant_is_refused_before_anything_starts(tmp_path, optimizer, given, words):
    with pytest.raises(UserError, match=f"unknown {optimizer.upper()} variant '{given}'.*{words}"):
        worker.prepare(job(tmp_path / "run", optimizer=optimizer, optimizer_options={"variant": given}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "user_module:netwrk"}, "did you mean network"),
        ({"model": "user_module:not_a_network"}, r"return a torch\.nn\.Module"),
        ({"data": "digit"}, "did you mean digits"),
        ({"strategy": Strategy.of(world_size=3, global_batch_size=243)}, "give at most 240"),
    ],
)
def test_what_is_known_to_fail_is_said(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    """By every worker, but for what is wrong with the network: rank 0 traces it for all."""
    for first in (True,) if "model" in change else (True, False):
        with pytest.raises(UserError, match=words):
            worker.prepare(job(tmp_path / "run", **change), first)


def test_a_run_that_can_work_has_its_label(tmp_path: Path) -> None:
    ready = worker.prepare(job(tmp_path / "run", "terngrad"), first=False)
    assert ready.label and ready.model == MODEL and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("first", "rest"), [(1 << 20, 25 << 20), (4096, 4096)])
def test_buckets_that_ddp_makes(first: int, rest: int) -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=4)
    worker.check_buckets(strategy.changed(first_bucket_bytes=first, bucket_bytes=rest))
    with pytest.raises(UserError, match=r"buckets of 5000 and then .* bytes; leave first_bucket_bytes out"):
        worker.check_buckets(strategy.changed(first_bucket_bytes=5000, bucket_bytes=rest))


def answers(monkeypatch: pytest.MonkeyPatch, *others: tuple[str, str] | None) -> None:
    """The other ranks of the group have these errors; this one is rank 0."""

    def gather(errors: list[Any], own: Any) -> None:
        errors[:] = [own, *others]

    monkeypatch.setattr(worker.dist, "get_world_size", lambda: 1 + len(others))
    monkeypatch.setattr(worker.dist, "all_gather_object", gather)


def refuse() -> int:
    raise UserError("no data", "fetch it")


def test_what_one_rank_refuses_every_rank_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, None, None)
    assert worker.agreed(lambda: 7) == 7
    with pytest.raises(UserError, match=r"^rank 0: no data; fetch it$"):
        worker.agreed(refuse)
    answers(monkeypatch, ("no room", "make some"), None, ("no room", "make some"))
    with pytest.raises(UserError, match=r"^rank 1, 3: no room; make some$"):
        worker.agreed(lambda: 7)
    with pytest.raises(UserError, match=r"^rank 0: no data; rank 1, 3: no room; fetch it$"):
        worker.agreed(refuse)
    answers(monkeypatch, ("no data", "fetch it"))
    with pytest.raises(UserError, match=r"^no data; fetch it$"):
        worker.agreed(refuse)
