"""Verilator's model of the engines: one frame, many, and its refusals."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.nic import verilated
from paceline.nic.bodies import decoded, encoded, header
from paceline.nic.programs import missing
from paceline.nic.verilated import EngineRegisters, InceptionnModel

MISSING = missing("verilator", "g++")
needs_verilator = pytest.mark.skipif(bool(MISSING), reason=MISSING)
VALUES = np.linspace(-2, 2, 37, dtype=np.float32)


@pytest.fixture(scope="module")
def model():
    return InceptionnModel()


@needs_verilator
@pytest.mark.parametrize("scaled", [False, True])
def test_one_frame_as_a_card_sends_it(model, scaled):
    front = header(3)
    packed = model.compress(front + VALUES.tobytes(), EngineRegisters(3, 8, scaled))
    assert packed == front + encoded(VALUES, 8, scaled, "reference")
    back = model.decompress(packed, EngineRegisters(3, 8, scaled, VALUES.size))
    assert back == front + decoded(VALUES, 8, scaled, "reference").tobytes()


@needs_verilator
def test_an_unmarked_frame_comes_back_and_a_damaged_one_is_an_error(model):
    plain = header(2, marked=False) + b"anything"
    assert model.compress(plain, EngineRegisters(2, 8, False)) == plain
    packed = header(2) + encoded(VALUES, 8, False)
    settings = EngineRegisters(2, 8, False, VALUES.size)
    assert model.decompress(packed[:-1], settings) is None
    assert model.decompress(packed + bytes(200), settings) is None  # its end is still on the way when the error is out
    assert model.decompress(packed, settings) is not None


@needs_verilator
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_frame_that_is_too_long_does_not_reach_into_the_next_run(model, seed):
    packed = header(2) + encoded(VALUES, 8, False)
    settings = EngineRegisters(2, 8, False, VALUES.size)
    long = model.run([packed + bytes(500)], [settings], decompress=True, seed=seed)
    assert long.errors == (True,)
    assert long.beats_in == -(-(len(packed) + 500) // 32)
    after = model.run([packed], [settings], decompress=True, seed=seed)
    assert after.errors == (False,)
    assert after.frames == (header(2) + decoded(VALUES, 8, False, "reference").tobytes(),)


def burst_sizes(body):
    """Bytes of each burst of a body of the published format."""
    while body:
        size = 2 + sum((0, 1, 2, 4)[body[lane // 4] >> 2 * (lane % 4) & 3] for lane in range(8))
        yield size
        body = body[size:]


def aligner_cycles(sizes):
    """One for each chunk, which waits while two beats do; one more for each beat that the last one leaves."""
    held = cycles = 0
    for size in sizes:
        while held >= 64:
            held, cycles = held - 32, cycles + 1
        last, held, cycles = held + size, max(held + size - 32, 0) if held + size >= 32 else held + size, cycles + 1
    return cycles + max(0, -(-last // 32) - 1)


@needs_verilator
@pytest.mark.parametrize("values", ["small", "mixed", "large", "whole", "uneven"])
def test_a_frame_takes_the_cycles_that_its_chunks_take(model, values):
    rng = np.random.default_rng(1)
    uneven = np.full((46, 8), 3.0)
    uneven[::2, 0] = 0  # bursts of 30 and 34 bytes: no more than came in
    values = {
        "small": rng.standard_normal(362) * 0.01,
        "mixed": rng.standard_normal(362),
        "large": rng.standard_normal(362) * 9,
        "whole": np.full(362, 3.0),
        "uneven": uneven.reshape(-1),
    }[values].astype(np.float32)
    body = encoded(values, 10, False)
    run = model.run([header(2) + values.tobytes()] * 20, [EngineRegisters(2, 10, False)] * 20)
    assert run.frames[-1] == header(2) + body
    assert run.times[-1, 3] - run.times[9, 3] == 10 * aligner_cycles([32, 32, *burst_sizes(body)])


@needs_verilator
def test_wrong_arguments_are_refused(model):
    with pytest.raises(ValueError, match="1 to 15 header beats"):
        model.run([b"x"], [EngineRegisters(0, 8, False)])
    with pytest.raises(ValueError, match="at least a byte"):
        model.run([b""], [EngineRegisters(1, 8, False)])


@needs_verilator
def test_two_builders_at_once_build_one_library(monkeypatch, tmp_path):
    builds, both = [], threading.Event()

    def build(verilator, compiler, sources, wrapper, scratch):
        builds.append(scratch)
        both.wait(0.3)  # for a second builder, which must not come here
        if len(builds) > 1:
            both.set()
        (scratch / "engine.so").write_bytes(b"built")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verilated, "_build", build)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: verilated.library(), range(2))
    assert first == second and first.read_bytes() == b"built" and len(builds) == 1
    assert verilated.library() == first and len(builds) == 1


def test_without_verilator_one_line_names_the_package(monkeypatch):
    monkeypatch.setattr(verilated.shutil, "which", lambda name: None)
    with pytest.raises(UserError) as caught:
        verilated.library()
    assert str(caught.value) == "verilator is missing; install it: apt-get install verilator"


def test_verilog_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UserError, match=r"compressor\.v; write the engines' Verilog first"):
        verilated.library(tmp_path)
