"""Simulation of the emitted Verilog by a shared library that Verilator and a C++ compiler build."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UserError
from paceline.nic.emission import VERILOG
from paceline.nic.programs import program

ENGINES = ("compressor", "decompressor")
TERNARY = ("ternary_encoder", "ternary_decoder", "ternary_adder")
_WRAPPERS = {ENGINES: Path(__file__).with_suffix(".cpp"), TERNARY: Path(__file__).with_name("verilated_ternary.cpp")}
_DRIVER = Path(__file__).with_name("verilated_engine.h")
_REGISTERS = 8  # words of a frame's registers
_VERILATOR = ("--cc", "--no-timing", "-O3", "--noassert", "-Wno-fatal", "-Wno-lint", "-Wno-style")
_COMPILER = ("-std=c++17", "-O2", "-fPIC", "-w", "-DVL_TIME_CONTEXT")
_LINKER = ("-shared", "-pthread", "-Wl,-z,defs")
_FAILURES = {
    -1: "stopped before all frames came out",
    -2: "broke the rules of the stream",
    -3: "wrote more than there is room for",
}


@dataclass(frozen=True)
class EngineRegisters:
    """Registers of an engine for a frame: header beats, k of the bound 2^-k, the format, and (decompressor) its fp32 values."""

    head: int
    k: int
    scaled: bool
    values: int = 0


class EngineFailure(RuntimeError):
    """Error for a model that stopped, violated the stream protocol, or wrote too much."""


@dataclass(frozen=True)
class ModelRun:
    """Output of a model.

    Attributes:
        frames: bytes of each frame. ``errors``: its ``error``.
        times: int64 (frames, 4), cycles of a frame's first and last beat in, and first and last beat out.
        cycles: until the last beat left. ``beats_in``, ``beats_out``: beats in and beats out of all frames.
    """

    frames: tuple[bytes, ...]
    errors: tuple[bool, ...]
    times: NDArray[np.int64]
    cycles: int
    beats_in: int
    beats_out: int


def library(verilog: Path = VERILOG, engines: tuple[str, ...] = ENGINES) -> Path:
    """Return the shared library of the engines in a directory of Verilog, built once per text and cached for the user.

    Args:
        engines: ``ENGINES``, the two of INCEPTIONN, as a lab's card needs them, or ``TERNARY``.

    Raises:
        UserError: Verilator or a C++ compiler is missing, or fails.
    """
    sources, wrapper = [verilog / f"{name}.v" for name in engines], _WRAPPERS[engines]
    for source in sources:
        if not source.is_file():
            raise UserError(f"there is no {source}", "write the engines' Verilog first: paceline nic emit")
    verilator, compiler = program("verilator"), shutil.which(os.environ.get("CXX", "")) or program("g++")
    version = _output([verilator, "--version"])
    digest = hashlib.sha256("\0".join([version, *_VERILATOR, *_COMPILER, *_LINKER, compiler]).encode())
    for source in [*sources, wrapper, _DRIVER]:
        digest.update(source.read_bytes())
    built = _cache() / f"engine-{digest.hexdigest()[:16]}.so"
    if built.is_file():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second of two concurrent builders finds it built
        if not built.is_file():
            with tempfile.TemporaryDirectory(prefix="paceline-engine-") as scratch:
                _build(verilator, compiler, sources, wrapper, Path(scratch))
                fresh = built.with_suffix(f".{os.getpid()}.so")
                shutil.copyfile(Path(scratch) / "engine.so", fresh)
                fresh.replace(built)  # never half of a file
    return built


def _build(verilator: str, compiler: str, sources: Sequence[Path], wrapper: Path, scratch: Path) -> None:
    for source in sources:
        _output([verilator, *_VERILATOR, "--Mdir", str(scratch), "--prefix", f"V{source.stem}", str(source)])
    include = Path(_output([verilator, "--getenv", "VERILATOR_ROOT"]).strip()) / "include"
    models = sorted(scratch.glob("*.cpp"))
    if wrapper == _WRAPPERS[TERNARY]:  # only checks use these: what takes time is reading the same headers for every small file
        models = [_one_unit(scratch, source.stem) for source in sources]
    files = [*models, wrapper, include / "verilated.cpp"]
    threads = include / "verilated_threads.cpp"
    if threads.is_file():  # part of every model from Verilator 5 on
        files.append(threads)
    flags = [*_COMPILER, f"-I{scratch}", f"-I{include}", f"-I{include / 'vltstd'}"]
    objects = [str(scratch / f"{index}.o") for index in range(len(files))]  # Verilator also has a file verilated.cpp
    for file, compiled in zip(files, objects, strict=True):
        # Reset and start-up run once; they are half of the text.
        level = ["-O0"] if file.stem.endswith("__Slow") else ["-O1"] if file.stem.endswith("__Unit") else []
        _output([compiler, *flags, *level, "-c", str(file), "-o", compiled])
    _output([compiler, *_LINKER, *objects, "-o", str(scratch / "engine.so")])


def _one_unit(scratch: Path, stem: str) -> Path:
    unit = scratch / f"{stem}__Unit.cpp"
    unit.write_text("".join(f'#include "{part.name}"\n' for part in sorted(scratch.glob(f"V{stem}*.cpp"))), encoding="utf-8")
    return unit


def _output(command: list[str]) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if finished.returncode != 0:
        lines = [line for line in (finished.stderr or finished.stdout).splitlines() if line.strip()]
        raise UserError(f"{Path(command[0]).name} failed: {lines[0] if lines else f'exit code {finished.returncode}'}")
    return finished.stdout


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def entry(path: Path, name: str) -> Callable[..., int]:
    """Return a function of a built library that returns an int64."""
    function = _loaded(path)[name]
    function.restype = ctypes.c_int64
    return function


def drive(
    function: Callable[..., int],
    engine: tuple[int, str],
    streams: Sequence[Sequence[bytes]],
    registers: Sequence[Sequence[int]],
    *,
    room: int,
    seed: int = 0,
) -> ModelRun:
    """Send frames back to back through one of a library's engines and collect the output.

    Args:
        engine: its number in the library, and its name.
        streams: frames of each input stream. In a second stream an empty one is not sent.
        registers: up to eight words of each frame, its header beats first.
        room: bytes that may come out. ``seed``: seed of stalls and noise; 0: neither.

    Raises:
        EngineFailure: as ``InceptionnModel.run``.
        ValueError: likewise.
    """
    if any(not frame for frame in streams[0]) or any(not 1 <= words[0] <= 15 for words in registers):
        raise ValueError("a frame has at least a byte, and 1 to 15 header beats")
    count = len(registers)
    settings = np.zeros((count, _REGISTERS), np.uint32)
    for row, words in zip(settings, registers, strict=True):
        row[: len(words)] = words
    inputs: list[NDArray[Any]] = []
    for frames in streams:
        inputs += [np.frombuffer(b"".join(frames) or b"\0", np.uint8), np.array([len(frame) for frame in frames], np.uint64)]
    out, out_sizes, errors = np.empty(room, np.uint8), np.zeros(count, np.uint64), np.zeros(count, np.uint8)
    times, totals = np.zeros((count, 4), np.int64), np.zeros(3, np.uint64)
    result = function(
        ctypes.c_int(engine[0]),
        ctypes.c_int64(count),
        *(_pointer(array) for array in (*inputs, settings)),
        ctypes.c_uint64(seed),
        _pointer(out),
        ctypes.c_uint64(room),
        *(_pointer(array) for array in (out_sizes, errors, times, totals)),
    )
    cycles, beats_in, beats_out = totals.tolist()
    if result != count:
        raise EngineFailure(f"the {engine[1]} {_FAILURES.get(result, str(result))}, cycle {cycles}, seed {seed}")
    ends = np.cumsum(out_sizes).tolist()
    written = out[: ends[-1] if ends else 0].tobytes()
    parts = tuple(written[start:end] for start, end in zip([0, *ends], ends, strict=False))
    return ModelRun(parts, tuple(errors.astype(bool).tolist()), times, cycles, beats_in, beats_out)


class InceptionnModel:
    """Model of INCEPTIONN's compressor and decompressor.

    Raises:
        UserError: as ``library``.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or library()
        self._run, self._compress, self._decompress = (
            entry(self.path, f"paceline_engine_{name}") for name in ("run", "compress", "decompress")
        )

    def run(
        self, frames: Sequence[bytes], settings: Sequence[EngineRegisters], *, decompress: bool = False, seed: int = 0
    ) -> ModelRun:
        """Send frames back to back and collect the output.

        Args:
            seed: seed of stalls on both sides, of the registers between frames and of bytes that do not count; 0: no stalls.

        Raises:
            EngineFailure: no output for 4,000 cycles, a beat that changed while it waited, a wrong first, last or length.
            ValueError: an empty frame, or ``head`` outside 1 to 15.
        """
        registers = [(one.head, one.k, one.scaled, one.values) for one in settings]
        room = 2 * sum(map(len, frames)) + 4 * sum(one.values for one in settings) + 4096
        return drive(self._run, (decompress, ENGINES[decompress]), [frames], registers, room=room, seed=seed)

    def compress(self, frame: bytes, settings: EngineRegisters) -> bytes | None:
        """Compress one frame, as a card does. Return None for an error of the engine."""
        arguments = (settings.head, settings.k, int(settings.scaled))
        return _one(self._compress, frame, arguments, 2 * len(frame) + 64)

    def decompress(self, frame: bytes, settings: EngineRegisters) -> bytes | None:
        """Restore one frame, as a card does. Return None for an error of the engine."""
        arguments = (settings.head, settings.k, int(settings.scaled), settings.values)
        return _one(self._decompress, frame, arguments, len(frame) + 4 * settings.values + 64)


class TernaryModel:
    """Model of the three ternary engines. Frames, stalls and failures are those of ``InceptionnModel.run``.

    Raises:
        UserError: as ``library``.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or library(engines=TERNARY)
        self._run = entry(self.path, "paceline_ternary_run")

    def run(
        self,
        engine: str,
        frames: Sequence[bytes],
        registers: Sequence[Sequence[int]],
        *,
        seconds: Sequence[bytes] | None = None,
        room: int,
        seed: int = 0,
    ) -> ModelRun:
        """Send frames back to back and collect the output.

        Args:
            engine: one of ``TERNARY``.
            registers: of each frame its header beats; then of the encoder what ``bodies.draw_words`` gives, of the decoder
                scaler and values, of the adder elements, workers of both bodies, and whether each is a ``ternary``.
            seconds: frames of the adder's second stream, empty where there is none.
            room: bytes that may come out.

        Raises:
            EngineFailure, ValueError: as ``InceptionnModel.run``.
        """
        streams = [frames, seconds if seconds is not None else [b""] * len(frames)]
        return drive(self._run, (TERNARY.index(engine), engine.replace("_", " ")), streams, registers, room=room, seed=seed)


def _one(function: Callable[..., int], frame: bytes, arguments: tuple[int, ...], room: int) -> bytes | None:
    out = ctypes.create_string_buffer(room)
    size = function(frame, ctypes.c_size_t(len(frame)), *map(ctypes.c_int, arguments), out, ctypes.c_size_t(room))
    return None if size < 0 else out.raw[:size]


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
