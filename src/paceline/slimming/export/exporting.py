"""Export of a module as a file of a runtime: write a temporary file, check it against the module, then move it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.array_types import Array
from paceline.errors import UserError, shorten
from paceline.slimming.export.export_failure import ExportFailure
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.shrink import tensors_in

TOLERANCE = 1e-3
"""Largest difference relative to the largest output: it allows another order of additions."""
OWN_LOOP = 'rewrite that line, or slim for a size in your own loop: `paceline.slim(model, inputs, budget="size=4MB")`'
"""Hint for a module that cannot be exported."""


def checked_export(
    model: nn.Module,
    path: str | Path,
    runtime: str,
    write: Callable[[Path], None],
    apart: Callable[[Path], float],
    tolerance: float = TOLERANCE,
) -> Path:
    """Write a file, and keep it if its runtime computes the same as the module.

    Args:
        runtime: its name. ``write``: makes the file, with the module in eval mode. ``apart``: as of ``difference``.
        tolerance: largest value of ``apart``.

    Returns:
        The file. No file remains if the export or the check fails.

    Raises:
        UserError: as ``write``, another result, a file that cannot be written.
    """
    file = Path(path)
    draft = file.with_suffix(f".draft{file.suffix}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with eval_mode(model), silent():
            write(draft)
        with eval_mode(model):
            found = _compared(model, runtime, draft, apart)
        if not found <= tolerance:
            raise UserError(
                f"{runtime} computes another result than {type(model).__name__}: {found:.2g} of the largest output apart",
                "report this model; the file was not kept",
            )
        draft.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}", "give another directory") from error
    finally:
        draft.unlink(missing_ok=True)
    return file


def _compared(model: nn.Module, runtime: str, draft: Path, apart: Callable[[Path], float]) -> float:
    """Return how far the file's outputs are apart. Raises UserError if the runtime refuses the file."""
    try:
        return apart(draft)
    except (UserError, OSError):
        raise
    except Exception as error:  # runtimes have their own kinds
        why = shorten(str(error).strip().partition("\n")[0], 200)
        what = f"{runtime} does not run the exported {type(model).__name__}: {why}"
        raise UserError(what, "replace that operation; the file was not kept") from error


@contextlib.contextmanager
def experts_by_token(model: Any) -> Iterator[None]:
    """Let experts be gathered for each token: grouped products, Hugging Face's default, have no form in ONNX."""
    if not getattr(model, "_can_set_experts_implementation", lambda: False)():
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextlib.contextmanager
def plain_attention(model: Any) -> Iterator[None]:
    """Let attention be matrix products and a softmax, in all settings of the modules. A slimmed module may have its own copy of
    them, and a mask for another attention than the one that reads it is wrong.

    PyTorch's own leaves its result in another order of memory than the operations of which ONNX makes it, and a view of that
    cannot be converted (T5).
    """
    found: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    settings: dict[int, Any] = {id(each): each for each in found if getattr(each, "_attn_implementation", None) is not None}
    before = [(each, each._attn_implementation) for each in settings.values()]
    try:
        for each, _ in before:
            each._attn_implementation = "eager"
        yield
    finally:
        for each, name in before:
            each._attn_implementation = name


def refused(model: nn.Module, form: str, error: Exception) -> UserError:
    """Return the error for a module that an exporter refuses."""
    failure = ExportFailure.of(error, model)
    fix = OWN_LOOP if failure.module else "replace that operation"
    return UserError(failure.refusal(f"cannot be exported to {form}"), fix)


def difference(model: nn.Module, inputs: tuple[Any, ...], found: Sequence[Array]) -> float:
    """Return the largest difference of a runtime's outputs from the module's, relative to the module's largest output."""
    with torch.no_grad():
        expected = [tensor.numpy() for tensor in tensors_in(model.eval()(*inputs))]
    largest = max((float(np.abs(each).max()) for each in expected if each.size), default=0.0)
    apart = [float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True) if a.size]
    return max(apart, default=0.0) / (largest or 1.0)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Suppress the exporters' prints and warnings."""
    disabled, handlers = logging.root.manager.disable, logging.root.handlers[:]
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers  # a handler added here would write to a closed stream
