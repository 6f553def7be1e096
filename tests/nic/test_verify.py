"""The long comparisons, short: they agree, they report, and they see a wrong bit, error or length."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.nic import verify
from paceline.nic.programs import missing
from paceline.nic.verilated import EngineFailure, InceptionnModel

MISSING = missing("verilator", "g++")
needs_verilator = pytest.mark.skipif(bool(MISSING), reason=MISSING)


class Broken:
    """A model whose output is changed."""

    def __init__(self, change):
        self.model, self.change = InceptionnModel(), change

    def run(self, *arguments, **options):
        return self.change(self.model.run(*arguments, **options))


@needs_verilator
def test_all_agree_and_progress_is_reported():
    seen = []
    random = verify.verify_random(20_000, progress=lambda done, total: seen.append((done, total)))
    assert random.agreed and not random.difference
    assert random.cases == 20_000 and random.beats > 2 * 20_000 // 8 and 0 < random.beats <= 2 * random.cycles
    assert seen[-1] == (20_000, 20_000)
    damage = verify.verify_damage(500)
    assert damage.agreed and damage.cases == 500
    golden = verify.verify_golden()
    assert golden.agreed and golden.cases == 18


@needs_verilator
def test_every_tag_vector_occurs():
    result = verify.verify_tag_patterns()
    assert result.agreed, result.difference
    assert result.cases == 4**8 + 3**8


def flipped(run):
    frames = list(run.frames)
    frames[-1] = frames[-1][:-1] + bytes([frames[-1][-1] ^ 1])
    return replace(run, frames=tuple(frames))


def quiet(run):
    return replace(run, errors=(False,) * len(run.errors))


def short(run):
    return replace(run, frames=tuple(frame[:-4] for frame in run.frames))


def stopped(run):
    raise EngineFailure("the compressor stopped")


@needs_verilator
@pytest.mark.parametrize("change", [flipped, short, stopped])
def test_a_wrong_engine_is_seen(change):
    model = Broken(change)
    for result in (
        verify.verify_random(3000, model=model),
        verify.verify_tag_patterns(model=model),
        verify.verify_golden(model=model),
    ):
        assert not result.agreed
        assert result.difference


@needs_verilator
def test_an_error_that_is_missing_is_seen():
    result = verify.verify_damage(200, model=Broken(quiet))
    assert not result.agreed
    assert "error is False" in result.difference


def test_golden_vectors_that_are_not_there_are_said(tmp_path):
    with pytest.raises(UserError, match=r"no golden vectors.*name their directory"):
        list(verify.golden_frames(tmp_path))
