"""Error of a stopped trace: the operation, the module that ran it, and the line of the user's code."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError, shorten
from paceline.workload.factory import describe_error

if TYPE_CHECKING:
    from paceline.workload.tracing.recorder import Recorder

PROVIDE = (
    "return (module, example_batch), or set module.example_input to one: a tensor, a tuple of positional arguments or a dict "
    "of keyword arguments, the first dimension of each tensor being the batch; or give --input 3x224x224 or tokens:512"
)
_NEEDS_VALUES = ("item()", "copy out of meta tensor", "data-independent", "data-dependent", "no data", "meta tensors")
_CHOICE = "choose by shapes, by an argument (--args) or by torch.where, or leave the branch out of what is traced"
_OPERATIONS = {
    "aten._local_scalar_dense": (".item(), bool() or int() of a tensor", _CHOICE),
    "aten.nonzero": ("nonzero", "keep the shape: torch.where, or topk where the number of entries is known"),
    "aten.index": ("a boolean mask", "keep the shape: torch.where, or multiply by the mask"),
    "aten.masked_select": ("masked_select", "keep the shape: torch.where, or multiply by the mask"),
    "aten._unique2": ("unique", "give the number of entries as an argument (--args), and slice"),
    "aten.repeat_interleave": ("repeat_interleave by a tensor", "give output_size and whole numbers"),
    "aten._to_copy": ("a copy to the CPU, as .cpu(), .numpy() or .tolist() make", _CHOICE),
}


def stopped(error: Exception, recorder: Recorder, what: str) -> UserError:
    """Return the error for a forward or backward pass that ended in ``error``, with advice.

    Args:
        recorder: recorder of the pass, which knows the module and the operation.
        what: name of the network.
    """
    place, first = _place(error, recorder), describe_error(error)
    if not any(part in str(error) for part in _NEEDS_VALUES):
        return UserError(f"{what} fails on the example input: {first}{f' ({place})' if place else ''}", PROVIDE)
    operation, fix = _OPERATIONS.get(recorder.failed, (recorder.failed or "an operation", _CHOICE))
    where = f" in {place}" if place else ""
    values = "decides by the values of a tensor, which a trace does not have"
    return UserError(f"{what} {values}: {operation}{where} ({first})", fix)


def _place(error: Exception, recorder: Recorder) -> str:
    """Describe module and line: ``block.1 (Gate), net.py line 14: if x.mean() > 0:``; empty if neither is known."""
    parts = [f"{recorder.at} ({recorder.kinds[recorder.at]})"] if recorder.at in recorder.kinds else []
    frame = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if _is_users(f.filename)), None)
    line = linecache.getline(frame.filename, frame.lineno or 0).strip() if frame else ""
    if frame and line:
        parts.append(f"{Path(frame.filename).name} line {frame.lineno}: {shorten(line, 90)}")
    return ", ".join(parts)


def _is_users(file: str) -> bool:
    """Return whether a file belongs neither to this package nor to PyTorch or Python."""
    path = Path(file)
    if not path.is_absolute() or path.is_relative_to(Path(__file__).parents[2]):
        return False
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1] != "torch"
    return f"{Path('lib')}/python3" not in file
