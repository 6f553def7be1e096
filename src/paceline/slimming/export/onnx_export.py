"""Export of modules as ONNX files, with a check on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.onnx._internal.exporter._errors import ConversionError

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming.export import exporting, sparse_onnx
from paceline.slimming.export.exporting import checked_export, experts_by_token, plain_attention, refused
from paceline.slimming.export.random_draws import ConstantDraws, without_draws
from paceline.slimming.structures.shrink import tensors_in


def to_onnx(model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
    """Write a module as an ONNX file, and check that ONNX Runtime computes the same.

    Args:
        inputs: tensors of the shapes of the file's inputs.

    Returns:
        The file. No file remains if the export or the check fails.

    Raises:
        UserError: an operation that ONNX lacks, another result, a file that cannot be written.
    """

    def write(draft: Path) -> None:
        table = sparse_onnx.translations() if sparse_onnx.has_sparse(model) else None
        settings: Any = {"verbose": False, "external_data": False, "custom_translation_table": table}
        try:
            with experts_by_token(model):
                try:
                    torch.onnx.export(model, inputs, str(draft), dynamo=True, **settings)
                except ConversionError:
                    with plain_attention(model):
                        torch.onnx.export(model, inputs, str(draft), dynamo=True, **settings)
        except (torch.onnx.OnnxExporterError, torch._dynamo.exc.UserError) as error:
            raise refused(model, "ONNX", error) from error
        if table:
            sparse_onnx.compress(draft)

    return checked_export(model, path, "ONNX Runtime", write, lambda draft: difference(model, inputs, draft))


def difference(model: nn.Module, inputs: tuple[Any, ...], file: str | Path) -> float:
    """Return the largest difference of the file's outputs from the module's, relative to the module's largest output.

    Normal and uniform draws are the same constant in both.
    """
    drawn = without_draws(file)
    session = open_session(file if drawn is None else drawn)
    found = session.run(None, feed(session, inputs))
    with nullcontext() if drawn is None else ConstantDraws():  # type: ignore[no-untyped-call]
        return exporting.difference(model, inputs, found)


def open_session(file: Any, threads: int = 1, trace: str | Path | None = None) -> Any:
    """Open a session of ONNX Runtime on this machine's CPU for a file or a model. Raises UserError if it is not installed.

    Args:
        trace: a directory for the runtime's optimised graph and its profile.
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
    """Map the session's input names to the inputs."""
    arrays = [each.numpy() for each in tensors_in(inputs)]
    return {given.name: array for given, array in zip(session.get_inputs(), arrays, strict=True)}
