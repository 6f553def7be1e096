"""The ternary engines' Verilog agrees with the reference codec, and a wrong bit, error or length of it is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.nic import ternary_verify, verilated
from paceline.nic.emission import VERILOG
from paceline.nic.programs import missing
from paceline.nic.verilated import EngineFailure, TernaryModel

MISSING = missing("verilator", "g++")
needs_verilator = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def model():
    return TernaryModel()


class Broken:
    """A model of which one engine's output is changed."""

    def __init__(self, model, engine, change):
        self.model, self.engine, self.change = model, engine, change

    def run(self, engine, *arguments, **options):
        run = self.model.run(engine, *arguments, **options)
        return self.change(run) if engine == self.engine else run


@needs_verilator
def test_all_agree_and_progress_is_reported(model):
    seen = []
    random = ternary_verify.verify_ternary(20_000, model=model, progress=lambda *done: seen.append(done))
    assert random.agreed and not random.difference
    assert random.cases == 20_000 and random.beats > 20_000 // 8 + 20_000 // 128 and random.beats <= 2 * random.cycles
    assert seen[-1] == (20_000, 20_000)
    sums = ternary_verify.verify_ternary_sums(20_000, model=model)
    damage = ternary_verify.verify_ternary_damage(600, model=model)
    golden = ternary_verify.verify_ternary_golden(model=model)
    assert (sums.difference, damage.difference, golden.difference) == ("", "", "")
    assert (sums.cases, damage.cases, golden.cases) == (20_000, 600, 6)


def flipped(run):
    frames = list(run.frames)
    longest = max(range(len(frames)), key=lambda k: len(frames[k]) * (not run.errors[k]))
    frames[longest] = frames[longest][:-1] + bytes([frames[longest][-1] ^ 1])
    return replace(run, frames=tuple(frames))


def quiet(run):
    return replace(run, errors=(False,) * len(run.errors))


def short(run):
    return replace(run, frames=tuple(frame[:-4] for frame in run.frames))


def stopped(run):
    raise EngineFailure("it stopped")


@needs_verilator
@pytest.mark.parametrize("change", [flipped, short, stopped])
def test_a_wrong_engine_is_seen(model, change):
    for check, engines in (
        (ternary_verify.verify_ternary, ("ternary_encoder", "ternary_decoder")),
        (ternary_verify.verify_ternary_sums, ("ternary_adder",)),
        (ternary_verify.verify_ternary_damage, ("ternary_decoder", "ternary_adder")),
        (ternary_verify.verify_ternary_golden, ("ternary_encoder", "ternary_decoder")),
    ):
        for engine in engines:
            result = check(model=Broken(model, engine, change))
            assert not result.agreed
            assert result.difference, (check, engine)


@needs_verilator
@pytest.mark.parametrize("engine", ["ternary_encoder", "ternary_decoder", "ternary_adder"])
def test_an_error_that_is_missing_is_seen(model, engine):
    check = ternary_verify.verify_ternary if engine == "ternary_encoder" else ternary_verify.verify_ternary_damage
    result = check(model=Broken(model, engine, quiet))
    assert not result.agreed
    assert engine.replace("_", " ") in result.difference and "error is False" in result.difference


@pytest.mark.full  # another build
@needs_verilator
def test_wrong_verilog_is_seen(tmp_path, monkeypatch):
    """A carry that is lost in the text itself: so it is the emitted Verilog that runs."""
    for name in verilated.TERNARY:
        text = (VERILOG / f"{name}.v").read_text()
        if name == "ternary_adder":
            lost = text.replace("    carry <= ", "    carry <= 64'd0 & ", 1)
            assert lost != text
            text = lost
        (tmp_path / f"{name}.v").write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wrong = TernaryModel(verilated.library(tmp_path, verilated.TERNARY))
    result = ternary_verify.verify_ternary_sums(2000, model=wrong)
    assert not result.agreed and "ternary adder" in result.difference


def test_golden_vectors_that_are_not_there_are_said(tmp_path):
    with pytest.raises(UserError, match=r"no golden vectors.*name their directory"):
        ternary_verify.verify_ternary_golden(tmp_path, model=object())
