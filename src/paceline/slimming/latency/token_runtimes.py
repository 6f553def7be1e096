"""Runtimes that decode a language model token by token, each with its file of a decoder with a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.slimming.export.cached_decoder import TOLERANCE, CachedDecoder, decoder_program, decoder_to_onnx, steps_apart
from paceline.slimming.export.exporting import checked_export, refused, silent
from paceline.slimming.latency.targets import TARGETS, SlimTarget
from paceline.slimming.latency.token_times import TokenLatency, TokenProgram, TokenRunner, token_latencies

COMPILED_STEPS = (3, 1, 1)
"""Tokens of the runs that check a compiled decoder: a prompt and tokens, for which alone it is compiled."""
MOST_SHAPES = 64
"""Most compilations of the same code in a process: each decoder needs one for prompts and one for tokens."""


class TokenRuntime(ABC):
    """Runtime of a target that decodes token by token.

    Attributes:
        target: its target. ``forms``: whether it has files with fewer bits.
    """

    target: ClassVar[SlimTarget]
    forms: ClassVar[bool] = False

    @abstractmethod
    def export(self, model: nn.Module, path: str | Path, most: int) -> Path:
        """Write a decoder of Hugging Face with its cache, and check its logits over several steps.

        Args:
            most: largest number of tokens in a call or in the cache.

        Returns:
            The file. No file remains after an error.

        Raises:
            UserError: no such decoder, an operation that the runtime lacks, other logits, a file that cannot be written.
        """

    @abstractmethod
    def open(self, file: str | Path, threads: int = 1) -> TokenProgram:
        """Open a file of ``export``."""

    def latencies(self, files: Mapping[str, str | Path], vocabulary: int, **settings: Any) -> dict[str, TokenLatency]:
        """Measure files by name, as ``token_latencies``, with its ``settings``."""
        return token_latencies(files, vocabulary, open_program=self.open, **settings)


class OnnxTokens(TokenRuntime):
    """ONNX Runtime."""

    target, forms = TARGETS["onnxruntime"], True

    def export(self, model: nn.Module, path: str | Path, most: int) -> Path:
        """Export as ``decoder_to_onnx``, for any number of tokens."""
        return decoder_to_onnx(model, path)

    def open(self, file: str | Path, threads: int = 1) -> TokenProgram:
        """Open a session."""
        return TokenRunner(file, threads)


class CompiledTokens(TokenRuntime):
    """torch.compile with Inductor on the CPU, where the program is compiled for any number of tokens in the cache.

    Its threads are those of PyTorch in the process.
    """

    target = TARGETS["torch-compile"]

    def export(self, model: nn.Module, path: str | Path, most: int) -> Path:
        """Export with ``torch.export``."""
        decoder = CachedDecoder(model)

        def write(draft: Path) -> None:
            torch.export.save(decoder_program(decoder, self.target.title), draft)

        def apart(draft: Path) -> float:
            return steps_apart(decoder, self.open(draft), COMPILED_STEPS)

        return checked_export(model, path, self.target.title, write, apart, TOLERANCE)

    def open(self, file: str | Path, threads: int = 1) -> TokenProgram:
        """Load a program. It is compiled in its first calls."""
        return _Compiled(torch.export.load(file))

    def latencies(self, files: Mapping[str, str | Path], vocabulary: int, **settings: Any) -> dict[str, TokenLatency]:
        """Measure files with as many threads of PyTorch, which are set back afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(settings.get("threads", 1))
        try:
            return super().latencies(files, vocabulary, **settings)
        finally:
            torch.set_num_threads(before)


class _Compiled(TokenProgram):
    """A compiled program."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        user = set(program.graph_signature.user_inputs)
        nodes = [each for each in program.graph.nodes if each.op == "placeholder" and each.name in user]
        self._shapes = [tuple(map(int, (each.meta["val"].shape[1], each.meta["val"].shape[3]))) for each in nodes[1:]]
        self._run = torch.compile(program.module(), dynamic=True)
        self._compiled: set[tuple[bool, bool]] = set()

    def empty(self) -> list[Array]:
        return [np.zeros((1, heads, 0, width), np.float32) for heads, width in self._shapes]

    def call(self, tokens: Ints, past: Sequence[Array]) -> Callable[[], Sequence[Any]]:
        ids, (keys, values) = _tensor(tokens), (list(map(_tensor, past[place::2])) for place in (0, 1))
        pairs = list(zip(keys, values, strict=True))

        def run() -> Sequence[Any]:
            with torch.inference_mode():
                logits, present = self._run(ids, pairs)
            return [logits, *(each for pair in present for each in pair)]

        kind = tokens.shape[1] == 1, past[0].shape[2] == 0  # sizes of 0 and 1 are constants of a compilation
        if kind not in self._compiled:
            with _compiling():
                run()
            self._compiled.add(kind)
        return run


@contextmanager
def _compiling() -> Iterator[None]:
    """Compile in this process, silently, and allow decoders of one class a compilation each."""
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    with silent(), inductor.patch(compile_threads=1), dynamo.patch(recompile_limit=MOST_SHAPES):
        yield


class ExecuTorchTokens(TokenRuntime):
    """ExecuTorch with its XNNPACK backend. Its memory is planned for the largest number of tokens.

    Its threads are one pool of the process.
    """

    target = TARGETS["executorch"]

    def export(self, model: nn.Module, path: str | Path, most: int) -> Path:
        """Export with ``torch.export``, lowered to XNNPACK."""
        self.target.check_installed()
        decoder, title = CachedDecoder(model), self.target.title

        def write(draft: Path) -> None:
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower

            program = decoder_program(decoder, title, most)
            try:
                lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
            except Exception as error:  # each of its passes raises different errors
                raise refused(model, f"{title} with a cache", error) from error
            draft.write_bytes(lowered.buffer)

        return checked_export(model, path, title, write, lambda draft: steps_apart(decoder, self.open(draft)), TOLERANCE)

    def open(self, file: str | Path, threads: int = 1) -> TokenProgram:
        """Load the file's method, on as many threads."""
        self.target.check_installed()
        return _ExecuTorchProgram(Path(file), threads)


class _ExecuTorchProgram(TokenProgram):
    """A method of an ExecuTorch file."""

    def __init__(self, file: Path, threads: int) -> None:
        with silent():
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime

        if portable_lib._threadpool_get_thread_count() != threads:
            portable_lib._unsafe_reset_threadpool(threads)  # Python has no other way; files that are open lose their pool
        self._program = Runtime.get().load_program(file)  # a method reads from it, and does not keep it alive
        self._method = self._program.load_method("forward")
        about = self._method.metadata
        self._shapes = [about.input_tensor_meta(number).sizes() for number in range(1, about.num_inputs())]

    def empty(self) -> list[Array]:
        return [np.zeros((1, shape[1], 0, shape[3]), np.float32) for shape in self._shapes]

    def call(self, tokens: Ints, past: Sequence[Array]) -> Callable[[], Sequence[Any]]:
        given = [_tensor(tokens), *map(_tensor, past)]
        return lambda: self._method.execute(given)


def _tensor(array: Array | Ints) -> torch.Tensor:
    """Return a tensor of an array. An empty one gets PyTorch's strides, which ExecuTorch checks."""
    return torch.from_numpy(np.ascontiguousarray(array)) if array.size else torch.zeros(array.shape)


TOKEN_RUNTIMES: Mapping[str, TokenRuntime] = {
    each.target.name: each for each in (OnnxTokens(), ExecuTorchTokens(), CompiledTokens())
}
"""Runtimes by the names of their targets."""


def token_runtime(target: str) -> TokenRuntime:
    """Return the runtime of a target.

    Raises:
        UserError: a target on which decoders do not run by token here, or one that is not installed.
    """
    if target not in TOKEN_RUNTIMES:
        names = ", ".join(TOKEN_RUNTIMES)
        raise UserError(f"a language model on {target}", f"decoders are exported with their cache and timed on {names} only")
    found = TOKEN_RUNTIMES[target]
    found.target.check_installed()
    return found
