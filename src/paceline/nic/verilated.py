"""The emitted Verilog as a fast model: built by Verilator and a C++ compiler into a shared library, and driven from here."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UserError
from paceline.nic.emission import VERILOG
from paceline.nic.programs import program

_ENGINES = ("compressor", "decompressor")
_WRAPPER = Path(__file__).with_suffix(".cpp")
_VERILATOR = ("--cc", "--no-timing", "-O3", "--noassert", "-Wno-fatal", "-Wno-lint", "-Wno-style")
_COMPILER = ("-std=c++17", "-O2", "-fPIC", "-w", "-DVL_TIME_CONTEXT")
_LINKER = ("-shared", "-pthread", "-Wl,-z,defs")
_FAILURES = {
    -1: "stopped before all frames came out",
    -2: "broke the rules of the stream",
    -3: "wrote more than there is room for",
}


@dataclass(frozen=True)
class Settings:
    """An engine's registers for a frame: header beats, k of the bound 2^-k, the format, and (decompressor) its fp32 values."""

    head: int
    k: int
    scaled: bool
    values: int = 0


class EngineFailure(RuntimeError):
    """A model stopped, broke the rules of the stream, or wrote too much."""


@dataclass(frozen=True)
class Run:
    """What came out of a model.

    Attributes:
        frames: bytes of each frame. ``errors``: its ``error``.
        times: int64 (frames, 4), cycles of a frame's first and last beat in, and first and last beat out.
        cycles: until the last beat left. ``beats_in``, ``beats_out``: of all frames.
    """

    frames: tuple[bytes, ...]
    errors: tuple[bool, ...]
    times: NDArray[np.int64]
    cycles: int
    beats_in: int
    beats_out: int


def library(verilog: Path = VERILOG) -> Path:
    """The shared library of the engines in a directory of Verilog; built once for each text, then kept in the user's cache.

    Raises:
        UserError: Verilator or a C++ compiler is missing, or fails.
    """
    sources = [verilog / f"{name}.v" for name in _ENGINES]
    for source in sources:
        if not source.is_file():
            raise UserError(f"there is no {source}", "write the engines' Verilog first: paceline nic emit")
    verilator, compiler = program("verilator"), shutil.which(os.environ.get("CXX", "")) or program("g++")
    version = _output([verilator, "--version"])
    digest = hashlib.sha256("\0".join([version, *_VERILATOR, *_COMPILER, *_LINKER, compiler]).encode())
    for source in [*sources, _WRAPPER]:
        digest.update(source.read_bytes())
    built = _cache() / f"engine-{digest.hexdigest()[:16]}.so"
    if built.is_file():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two builders at once, the second finds it built
        if not built.is_file():
            with tempfile.TemporaryDirectory(prefix="paceline-engine-") as scratch:
                _build(verilator, compiler, sources, Path(scratch))
                fresh = built.with_suffix(f".{os.getpid()}.so")
                shutil.copyfile(Path(scratch) / "engine.so", fresh)
                fresh.replace(built)  # never half of a file
    return built


def _build(verilator: str, compiler: str, sources: Sequence[Path], scratch: Path) -> None:
    for source in sources:
        _output([verilator, *_VERILATOR, "--Mdir", str(scratch), "--prefix", f"V{source.stem}", str(source)])
    include = Path(_output([verilator, "--getenv", "VERILATOR_ROOT"]).strip()) / "include"
    files = [*sorted(scratch.glob("*.cpp")), _WRAPPER, include / "verilated.cpp"]
    threads = include / "verilated_threads.cpp"
    if threads.is_file():  # part of every model from Verilator 5 on
        files.append(threads)
    flags = [*_COMPILER, f"-I{scratch}", f"-I{include}", f"-I{include / 'vltstd'}"]
    objects = [str(scratch / f"{index}.o") for index in range(len(files))]  # Verilator has a verilated.cpp of its own
    for file, compiled in zip(files, objects, strict=True):
        # Reset and start-up run once; they are half of the text.
        level = ["-O0"] if file.stem.endswith("__Slow") else []
        _output([compiler, *flags, *level, "-c", str(file), "-o", compiled])
    _output([compiler, *_LINKER, *objects, "-o", str(scratch / "engine.so")])


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
    loaded = ctypes.CDLL(str(path))
    loaded.paceline_engine_run.restype = ctypes.c_int64
    for name in ("paceline_engine_compress", "paceline_engine_decompress"):
        getattr(loaded, name).restype = ctypes.c_int64
    return loaded


class Model:
    """The model of both engines.

    Raises:
        UserError: what ``library`` raises.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or library()
        self._library = _loaded(self.path)

    def run(self, frames: Sequence[bytes], settings: Sequence[Settings], *, decompress: bool = False, seed: int = 0) -> Run:
        """Send frames back to back and collect what comes out.

        Args:
            seed: of stalls on both sides, of the registers between frames and of bytes that do not count; 0: no stalls.

        Raises:
            EngineFailure: no output for 4,000 cycles, a beat that changed while it waited, a wrong first, last or length.
            ValueError: an empty frame, or ``head`` outside 1 to 15.
        """
        if any(not frame for frame in frames) or any(not 1 <= one.head <= 15 for one in settings):
            raise ValueError("a frame has at least a byte, and 1 to 15 header beats")
        count = len(frames)
        content = np.frombuffer(b"".join(frames) or b"\0", np.uint8)
        sizes = np.array([len(frame) for frame in frames], np.uint64)
        registers = np.array([(one.head, one.k, one.scaled, one.values) for one in settings], np.int32).reshape(count, 4)
        room = int(2 * content.size + 4 * registers[:, 3].sum(dtype=np.int64) + 4096)
        out, out_sizes, errors = np.empty(room, np.uint8), np.zeros(count, np.uint64), np.zeros(count, np.uint8)
        times, totals = np.zeros((count, 4), np.int64), np.zeros(3, np.uint64)
        result = self._library.paceline_engine_run(
            ctypes.c_int(decompress),
            ctypes.c_int64(count),
            *(_pointer(array) for array in (content, sizes, registers)),
            ctypes.c_uint64(seed),
            _pointer(out),
            ctypes.c_uint64(room),
            *(_pointer(array) for array in (out_sizes, errors, times, totals)),
        )
        cycles, beats_in, beats_out = totals.tolist()
        if result != count:
            raise EngineFailure(f"the {_ENGINES[decompress]} {_FAILURES.get(result, str(result))}, cycle {cycles}, seed {seed}")
        ends = np.cumsum(out_sizes).tolist()
        written = out[: ends[-1] if ends else 0].tobytes()
        parts = tuple(written[start:end] for start, end in zip([0, *ends], ends, strict=False))
        return Run(parts, tuple(errors.astype(bool).tolist()), times, cycles, beats_in, beats_out)

    def compress(self, frame: bytes, settings: Settings) -> bytes | None:
        """One frame, as a card calls it; None for an error of the engine."""
        return self._one(
            "paceline_engine_compress", frame, (settings.head, settings.k, int(settings.scaled)), 2 * len(frame) + 64
        )

    def decompress(self, frame: bytes, settings: Settings) -> bytes | None:
        """Likewise."""
        arguments = (settings.head, settings.k, int(settings.scaled), settings.values)
        return self._one("paceline_engine_decompress", frame, arguments, len(frame) + 4 * settings.values + 64)

    def _one(self, name: str, frame: bytes, arguments: tuple[int, ...], room: int) -> bytes | None:
        out = ctypes.create_string_buffer(room)
        size = getattr(self._library, name)(
            frame, ctypes.c_size_t(len(frame)), *map(ctypes.c_int, arguments), out, ctypes.c_size_t(room)
        )
        return None if size < 0 else out.raw[:size]


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
