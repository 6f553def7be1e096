"""ONNX files of modules, checked against them on ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming import sparse_onnx
from paceline.slimming.shrink import tensors_in

TOLERANCE = 1e-3
"""Of the largest output: another order of additions, no more."""


def to_onnx(model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
    """Write a module as an ONNX file, and check that ONNX Runtime computes what the module does.

    Args:
        inputs: tensors of the shapes that the file is for.

    Returns:
        The file. Nothing is left there where the export or the check fails.

    Raises:
        UserError: an operation that ONNX lacks, another result, a file that cannot be written.
    """
    file = Path(path)
    draft = file.with_suffix(".draft.onnx")
    was_training = model.training
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _silent():
            table = sparse_onnx.translations() if sparse_onnx.has_sparse(model) else None
            torch.onnx.export(
                model.eval(),
                inputs,
                str(draft),
                dynamo=True,
                verbose=False,
                external_data=False,
                custom_translation_table=table,
            )
            if table:
                sparse_onnx.compress(draft)
        apart = difference(model, inputs, draft)
        if not apart <= TOLERANCE:
            raise UserError(
                f"ONNX Runtime computes another result than {type(model).__name__}: {apart:.2g} of the largest output apart",
                "report this model; the file was not kept",
            )
        draft.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}", "give another directory") from error
    except torch.onnx.OnnxExporterError as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{type(model).__name__} cannot be exported to ONNX: {text}", "replace that operation") from error
    finally:
        draft.unlink(missing_ok=True)
        model.train(was_training)
    return file


def difference(model: nn.Module, inputs: tuple[Any, ...], file: str | Path) -> float:
    """The largest difference of the file's outputs to the module's, beside the module's largest output."""
    with torch.no_grad():
        expected = [tensor.numpy() for tensor in tensors_in(model.eval()(*inputs))]
    session = open_session(file)
    found: Sequence[Array] = session.run(None, feed(session, inputs))
    largest = max((float(np.abs(each).max()) for each in expected if each.size), default=0.0)
    apart = [float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True) if a.size]
    return max(apart, default=0.0) / (largest or 1.0)


def open_session(file: Any, threads: int = 1, trace: str | Path | None = None) -> Any:
    """A session of ONNX Runtime on this machine's CPU, of a file or a model. Raises UserError where it is not installed.

    Args:
        trace: a directory for the graph that the runtime makes of the file, and for its profile.
    """
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as error:
        raise UserError("ONNX Runtime is not installed", "pip install 'paceline[slim]'") from error
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if sparse_onnx.LIBRARY.exists():
        options.register_custom_ops_library(str(sparse_onnx.LIBRARY))
    if trace is not None:
        options.optimized_model_filepath = str(Path(trace) / "made.onnx")
        options.enable_profiling, options.profile_file_prefix = True, str(Path(trace) / "profile")
    source = file.SerializeToString() if hasattr(file, "SerializeToString") else str(file)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def feed(session: Any, inputs: tuple[Any, ...]) -> Mapping[str, Array]:
    """Inputs by the names that a session has for them."""
    arrays = [each.numpy() for each in tensors_in(inputs)]
    return {given.name: array for given, array in zip(session.get_inputs(), arrays, strict=True)}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The exporter prints its steps, and warns of what is not this caller's."""
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch.onnx").setLevel(level)


__all__ = ["difference", "feed", "open_session", "to_onnx"]
