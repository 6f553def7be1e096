"""Runtimes whose files are written and checked here, but which cannot run here: TensorRT and Core ML."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slim_record import TIMED_ELSEWHERE, UNMEASURED
from paceline.slimming.export.exporting import checked_export, refused
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.export.tensorrt_rules import check_tensorrt
from paceline.slimming.latency.targets import TARGETS, SlimTarget
from paceline.slimming.structures.shrink import tensors_in


class UnmeasuredTarget(SlimTarget):
    """Runtime that is not here. Latencies are those of another runtime, so no budget of time is taken."""

    measured = False

    @property
    def timer(self) -> SlimTarget:
        """Return ONNX Runtime, whose latencies stand in the answers, each named as its own."""
        return TARGETS[TIMED_ELSEWHERE]

    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Raise UserError: nothing runs here."""
        raise UserError(f"{self.title} does not run here", f"time the file where {self.title} is")


class TensorRT(UnmeasuredTarget):
    """TensorRT, which builds an engine from an ONNX file: ``trtexec --onnx=model.onnx``."""

    name, title, suffix, package, extra = "tensorrt", UNMEASURED["tensorrt"], ".onnx", "onnxruntime", "slim"

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export with ``torch.onnx``, compare on ONNX Runtime, and check the published rules of TensorRT's parser."""
        self.timer.check_installed()
        file = to_onnx(model, inputs, path)
        try:
            check_tensorrt(file)
        except UserError:
            file.unlink()
            raise
        return file

    def check_installed(self) -> None:
        """Check ONNX Runtime, which compares the file."""
        self.timer.check_installed()

    def vector_width(self) -> int:
        """Return 8: Tensor Cores take fp16 widths in multiples of 16 bytes (NVIDIA, Matrix Multiplication guide)."""
        return 8


class CoreML(UnmeasuredTarget):
    """Core ML by ``coremltools``, in fp32. The package ``model.mlpackage`` is in a zip archive."""

    name, title, suffix = "coreml", UNMEASURED["coreml"], ".mlpackage.zip"
    package, extra = "coremltools", "coreml"

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Convert, and compare the shapes of inputs and outputs: results need a Mac. Arguments and errors as ``SlimTarget``."""
        self.check_installed()

        def write(draft: Path) -> None:
            package = draft.with_suffix(".mlpackage")
            try:
                _converted(model, inputs).save(str(package))
                with zipfile.ZipFile(draft, "w") as archive:
                    for each in sorted(package.rglob("*")):
                        archive.write(each, Path("model.mlpackage") / each.relative_to(package))
            except UserError:
                raise
            except Exception as error:  # its passes raise different errors
                raise refused(model, self.title, error) from error
            finally:
                shutil.rmtree(package, ignore_errors=True)

        return checked_export(model, path, self.title, write, lambda draft: 0.0 if _fits(draft, inputs) else np.inf)

    def vector_width(self) -> int:
        """Return 16: 64 bytes, to which the Neural Engine aligns (Apple, Deploying Transformers on the Neural Engine)."""
        return 16


def _converted(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Convert by ``torch.export``, or by a trace if its operations lack a translation, such as LSTM layers."""
    import coremltools as ct

    settings: dict[str, Any] = {"convert_to": "mlprogram", "compute_precision": ct.precision.FLOAT32}
    with torch.no_grad():
        try:
            return ct.convert(torch.export.export(model, inputs).run_decompositions({}), **settings)
        except Exception as error:  # its passes raise different errors
            try:
                kinds = [ct.TensorType(shape=tuple(each.shape), dtype=_kind(each)) for each in tensors_in(inputs)]
                return ct.convert(torch.jit.trace(model, inputs), inputs=kinds, **settings)
            except Exception:
                raise error from None


def _kind(tensor: torch.Tensor) -> Any:
    return np.float32 if tensor.is_floating_point() else np.int32


def _fits(draft: Path, inputs: tuple[Any, ...]) -> bool:
    """Return whether the package's inputs have the shapes of the network's, in order."""
    from coremltools.proto import Model_pb2

    with zipfile.ZipFile(draft) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".mlmodel"))
        description = Model_pb2.Model.FromString(archive.read(name)).description
    shapes = [tuple(each.type.multiArrayType.shape) for each in description.input]
    return bool(description.output) and shapes == [tuple(each.shape) for each in tensors_in(inputs)]


UNMEASURED_TARGETS: tuple[UnmeasuredTarget, ...] = (TensorRT(), CoreML())
