"""Runtimes that a network is slimmed for, with their files and their latencies here."""

from __future__ import annotations

import importlib.util
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming.export.exporting import checked_export, difference, refused, silent
from paceline.slimming.export.onnx_export import to_onnx
from paceline.slimming.latency.latency import Latency, alternating, own_clock, pinned, session_call
from paceline.slimming.structures.shrink import tensors_in


class SlimTarget(ABC):
    """Runtime that a network is slimmed for.

    Attributes:
        name: in Paceline; ``title``: official name. ``suffix``: suffix of its files.
        package: required package. ``extra``: extra of Paceline that installs it.
        measured: whether it runs here; if not, no budget of time is taken.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    suffix: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]
    measured: ClassVar[bool] = True

    @property
    def timer(self) -> SlimTarget:
        """Return the runtime that measures latencies: this one, if it runs here."""
        return self

    @abstractmethod
    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export a module on the CPU for inputs of these shapes, and check the file on the runtime.

        Returns:
            The file. No file remains if the export or the check fails.

        Raises:
            UserError: the package is missing, an operation that the runtime lacks, another result, an unwritable file.
        """

    @abstractmethod
    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Return a call that runs a file once. Raises UserError if the package is missing."""

    @abstractmethod
    def vector_width(self) -> int:
        """Return the number of channels that the runtime's fp32 kernels compute at once here. Widths are multiples of it."""

    def latencies(
        self, files: Mapping[str, tuple[str | Path, tuple[Any, ...]]], threads: int = 1, turns: int | None = None
    ) -> dict[str, Latency]:
        """Measure latencies by name, after a warm-up and in turns with the first, on as many processors as threads.

        Args:
            files: file and inputs, by name.
        """
        with pinned(threads):
            calls = {name: self.call(file, inputs, threads) for name, (file, inputs) in files.items()}
            return alternating(calls, turns, own_clock(threads))

    def check_installed(self) -> None:
        """Check the package. Raises UserError with the command to install it if it is missing."""
        if importlib.util.find_spec(self.package) is None:
            raise UserError(f"{self.title} is not installed", f"pip install 'paceline[{self.extra}]'")


class OnnxRuntime(SlimTarget):
    """ONNX Runtime on the CPU."""

    name, title, suffix, package, extra = "onnxruntime", "ONNX Runtime", ".onnx", "onnxruntime", "slim"

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export with ``torch.onnx``, as ``to_onnx``."""
        self.check_installed()
        return to_onnx(model, inputs, path)

    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Return a function that runs the file in a separate session."""
        self.check_installed()
        return session_call(file, inputs, threads)

    def vector_width(self) -> int:
        """Return 16 with AVX-512, else 8: the channels of MLAS's blocks."""
        return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


class _Xnnpack(SlimTarget):
    """A runtime that uses XNNPACK."""

    def vector_width(self) -> int:
        """Return 16 with AVX, else 8: columns of XNNPACK's fp32 kernels (its configs/gemm-config.c)."""
        return 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX") else 8


class ExecuTorch(_Xnnpack):
    """ExecuTorch with its XNNPACK backend.

    Its threads are one pool of the process: everything measured at a time uses the same number of threads.
    """

    name, title, suffix, package, extra = "executorch", "ExecuTorch", ".pte", "executorch", "executorch"

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export with ``torch.export``, lowered to XNNPACK. Arguments and errors as of ``SlimTarget``."""
        self.check_installed()

        def write(draft: Path) -> None:
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            try:
                exported = torch.export.export(model, inputs)
                program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
            except Exception as error:  # each of its passes raises different errors
                raise refused(model, self.title, error) from error
            draft.write_bytes(program.buffer)

        def apart(draft: Path) -> float:
            return difference(model, inputs, [each.numpy() for each in tensors_in(_executed(draft, inputs)())])

        return checked_export(model, path, self.title, write, apart)

    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Return a function that runs the file and keeps the program alive."""
        self.check_installed()
        return _executed(file, inputs, threads)


def _executed(file: str | Path, inputs: tuple[Any, ...], threads: int | None = None) -> Callable[[], Any]:
    """Run an ExecuTorch file and return its outputs. ``threads``: None leaves the pool unchanged."""
    with silent():
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

    if threads is not None and portable_lib._threadpool_get_thread_count() != threads:
        portable_lib._unsafe_reset_threadpool(threads)  # Python has no other way; files that are open lose their pool
    program = Runtime.get().load_program(Path(file))
    method, given = program.load_method("forward"), list(inputs)

    def run(program: Any = program) -> Any:  # a method reads from its program, and does not keep it alive
        return method.execute(given)

    return run


class LiteRT(_Xnnpack):
    """LiteRT, the runtime of TensorFlow Lite's files, with its XNNPACK delegate. Integer inputs become int32."""

    name, title, suffix, package, extra = "litert", "LiteRT", ".tflite", "litert_torch", "litert"

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export with ``litert_torch``. Arguments and errors as of ``SlimTarget``."""
        self.check_installed()

        def write(draft: Path) -> None:
            import litert_torch

            try:
                converted = litert_torch.convert(model, inputs)
            except Exception as error:  # each of its passes raises different errors
                raise refused(model, self.title, error) from error
            converted.export(str(draft))

        return checked_export(
            model, path, self.title, write, lambda draft: difference(model, inputs, _interpreted(draft, inputs, 1)())
        )

    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Return a function that runs the file in a separate interpreter."""
        self.check_installed()
        return _interpreted(file, inputs, threads)


def _interpreted(file: str | Path, inputs: tuple[Any, ...], threads: int) -> Callable[[], list[Array]]:
    """Run a LiteRT file and return its outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=Path(file).read_bytes(), num_threads=threads)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    details = sorted(run.get_input_details().items(), key=_place)
    arrays = [each.numpy() for each in tensors_in(inputs)]
    given = {name: array.astype(detail["dtype"]) for (name, detail), array in zip(details, arrays, strict=True)}
    return lambda: [array for _, array in sorted(run(**given).items(), key=_place)]


class TorchCompile(SlimTarget):
    """PyTorch's own compiler with its default backend, Inductor, on the CPU.

    The file is an exported program. It is compiled where it runs, with the default options. Its threads are those of PyTorch in
    the process: everything measured at a time uses the same number.
    """

    name, title, suffix, package, extra = "torch-compile", "torch.compile", ".pt2", "torch", "train"

    def check_installed(self) -> None:
        """Check PyTorch and the C++ compiler that it needs. Raises UserError with the command to install them."""
        super().check_installed()
        if not any(map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++", "c++"))):
            raise UserError("torch.compile needs a C++ compiler", "apt install g++, or set CXX")

    def export(self, model: nn.Module, inputs: tuple[Any, ...], path: str | Path) -> Path:
        """Export with ``torch.export``, and compare the compiled program. Arguments and errors as of ``SlimTarget``."""
        self.check_installed()

        def write(draft: Path) -> None:
            try:
                torch.export.save(torch.export.export(model, inputs), draft)
            except Exception as error:  # each of its passes raises different errors
                raise refused(model, self.title, error) from error

        def apart(draft: Path) -> float:
            return difference(model, inputs, [each.numpy() for each in tensors_in(_compiled(draft, inputs)())])

        return checked_export(model, path, self.title, write, apart)

    def call(self, file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> Callable[[], object]:
        """Return a function that runs the compiled program on the threads that PyTorch has now."""
        self.check_installed()
        return _compiled(file, inputs)

    def vector_width(self) -> int:
        """Return 16 with AVX-512, else 8: the vectors of Inductor's loops and of oneDNN's products."""
        return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8

    def latencies(
        self, files: Mapping[str, tuple[str | Path, tuple[Any, ...]]], threads: int = 1, turns: int | None = None
    ) -> dict[str, Latency]:
        """Measure as ``SlimTarget``. The program is compiled for the threads, which are set back afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return super().latencies(files, threads, turns)
        finally:
            torch.set_num_threads(before)


def _compiled(file: str | Path, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """Compile a saved program, and return a function that runs it."""
    from torch._inductor import config

    torch._dynamo.reset()  # else programs of one class share a limit of compilations
    run = torch.compile(torch.export.load(file).module(), dynamic=False)

    def call() -> Any:
        with torch.inference_mode():
            return run(*inputs)

    with silent(), config.patch(compile_threads=1):  # no processes that outlive the call
        call()
    return call


def _place(item: tuple[str, object]) -> int:
    """Return the number in the name of an input or output such as ``args_0`` or ``output_0``."""
    return int(item[0].rpartition("_")[2])


TARGETS: Mapping[str, SlimTarget] = {target.name: target for target in (OnnxRuntime(), ExecuTorch(), LiteRT(), TorchCompile())}
