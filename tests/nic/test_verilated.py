"""Verilator's model of the committed Verilog: its C interface, short comparisons, and a fault that they must find."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

if shutil.which("verilator") is None:
    pytest.skip("verilator is missing (Debian: apt-get install verilator)", allow_module_level=True)

from paceline.errors import UserError
from paceline.nic import verify
from paceline.nic.bodies import decoded, encoded, header
from paceline.nic.emission import VERILOG
from paceline.nic.verilated import Model, Settings, library


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.mark.parametrize("scaled", [False, True])
def test_one_frame_as_a_card_calls_it(model, scaled):
    values = np.random.default_rng(1).standard_normal(362).astype(np.float32)
    head = header(2)
    packed = model.compress(head + values.tobytes(), Settings(2, 6, scaled))
    assert packed == head + encoded(values, 6, scaled, "reference")
    back = model.decompress(packed, Settings(2, 6, scaled, values.size))
    assert back == head + decoded(values, 6, scaled, "reference").tobytes()


def test_a_frame_that_lacks_bytes_is_an_error_of_its_own_only(model):
    values = np.full(20, 0.5, np.float32)
    head, settings = header(2), Settings(2, 6, False, 20)
    packed = head + encoded(values, 6, False, "reference")
    assert model.decompress(packed[:-1], settings) is None
    assert model.decompress(packed, settings) == head + values.tobytes()


def test_a_frame_without_bytes_and_heads_out_of_range_are_refused(model):
    for frames, head in (([b""], 1), ([b"x"], 0), ([b"x"], 16)):
        with pytest.raises(ValueError, match="1 to 15 header beats"):
            model.run(frames, [Settings(head, 6, False)])


def test_short_comparisons_agree_and_count(model):
    steps = []
    result = verify.verify_random(20_000, model=model, progress=lambda done, total: steps.append((done, total)))
    assert result.agreed, result.difference
    assert result.cases >= 20_000 and result.cycles > result.beats / 2 > 0
    assert steps[-1] == (result.cases, 20_000)
    golden = verify.verify_golden(model=model)
    assert golden.agreed, golden.difference
    assert golden.cases == 18


def test_damaged_frames_are_refused_where_the_codec_refuses(model):
    result = verify.verify_damage(300, model=model)
    assert result.agreed, result.difference


def test_a_fault_in_the_verilog_is_found(tmp_path):
    for source in VERILOG.glob("*.v"):
        shutil.copy(source, tmp_path)
    whole = (tmp_path / "compressor.v").read_text()
    assert whole.count(">= 7'h7f;") == 8  # each lane: from 1 on, a value is sent whole
    (tmp_path / "compressor.v").write_text(whole.replace(">= 7'h7f;", ">= 7'h7e;", 1))
    result = verify.verify_random(20_000, model=Model(library(tmp_path)))
    assert not result.agreed
    assert "compressor" in result.difference


def test_missing_files_and_tools_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="there is no"):
        library(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install verilator"):
        library()
