"""Export of decoders of Hugging Face with a cache of keys and values, from their own modules: ONNX files and programs.

Inputs of an ONNX file are ``input_ids`` (1, tokens) and for each layer ``past_key_values.N.key`` and ``.value`` (1, heads,
past, width). Outputs are ``logits`` and ``present.N.key`` and ``.value``. The names are those of Optimum and ONNX Runtime
GenAI. The numbers of tokens and of past tokens are free, 0 past tokens included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.slimming.export.exporting import checked_export, experts_by_token, refused
from paceline.slimming.export.onnx_export import open_session
from paceline.slimming.structures.shrink import module_bytes

TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest one."""
ONE_FILE = 1.5e9
"""Bytes of weights beyond which they are in a separate file: a protocol buffer holds 2 GB."""
CHECKED = (3, 1, 2, 1)
"""Tokens of the runs that are compared: the prompt, then further tokens with the cache of all before."""
LEAST_BOUND = 8
"""Least bound of a number of tokens: it exceeds those of the example inputs and of ``CHECKED``."""
UNBOUNDED = 1 << 20
"""Largest number of tokens of a file for any number."""
Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (batch, heads, tokens, width)."""
Run = Callable[[Ints, list[Array]], tuple[Array, list[Array]]]
"""Tokens (1, tokens) and the cache of those before, to logits and the longer cache."""


class CachedDecoder(nn.Module):
    """A decoder with its cache as plain tensors: tokens and keys and values to logits and the longer keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"

    def forward(self, input_ids: Tensor, past: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Cache]:
        """Return logits (1, tokens, vocabulary), and keys and values of past and new tokens."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        found = self.model(input_ids=input_ids, use_cache=True, **{self._cache_name: cache})
        return found.logits, [(each.keys, each.values) for each in found[self._cache_name].layers]

    def sizes(self) -> list[tuple[int, int]]:
        """Return heads and width of the keys of each layer.

        Raises:
            UserError: a network that is no decoder, or one with other states than keys and values.
        """
        kind = type(self.model).__name__
        config = getattr(self.model, "config", None)
        if config is None or getattr(config, "is_encoder_decoder", False) or not hasattr(config, "vocab_size"):
            raise UserError(f"{kind} is no decoder of Hugging Face", "give a model for causal language modelling")
        try:
            with torch.no_grad():
                _, present = self(torch.zeros(1, 2, dtype=torch.long), [])
            shapes = [tuple(keys.shape) for keys, _ in present]
        except Exception as error:  # a network may raise anything
            what = f"{kind} does not run with a cache of keys and values: {str(error).partition(chr(10))[0]}"
            raise UserError(what, "only such decoders are exported token by token: give another model") from error
        return [(shape[1], shape[3]) for shape in shapes]

    def empty(self) -> Cache:
        """Return the cache of no tokens."""
        return [(torch.zeros(1, heads, 0, width), torch.zeros(1, heads, 0, width)) for heads, width in self.sizes()]


def decoder_to_onnx(model: nn.Module, path: str | Path) -> Path:
    """Write a decoder as an ONNX file with its cache, and check its logits over several steps on ONNX Runtime.

    Args:
        model: a model of Hugging Face for causal language modelling, on the CPU, in fp32.

    Returns:
        The file. Weights above ``ONE_FILE`` are next to it, under its name and ``.data``. No file remains after an error.

    Raises:
        UserError: no such decoder, an operation that ONNX lacks, other logits, a file that cannot be written.
    """
    decoder = CachedDecoder(model)
    file = Path(path)
    data = file.with_name(f"{file.name}.data")

    def write(draft: Path) -> None:
        try:
            with experts_by_token(model):
                program = _program(decoder)
        except (torch.onnx.OnnxExporterError, torch._dynamo.exc.UserError) as error:
            raise refused(model, "ONNX with a cache", error) from error
        import onnx_ir

        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces of the export: a sixth of a small file, and paths of this machine
        onnx_ir.save(program.model, str(draft), external_data=data.name if module_bytes(model) > ONE_FILE else None)

    try:
        return checked_export(model, file, "ONNX Runtime", write, lambda draft: steps_apart(decoder, _onnx(draft)), TOLERANCE)
    except UserError:
        data.unlink(missing_ok=True)
        raise


def decoder_program(decoder: CachedDecoder, runtime: str, most: int = UNBOUNDED) -> torch.export.ExportedProgram:
    """Return a decoder as a program of PyTorch, whose inputs are tokens and the list of keys and values.

    Args:
        runtime: name of the runtime that needs it. ``most``: largest number of tokens, and of past tokens.

    Raises:
        UserError: no such decoder, or an operation that ``torch.export`` refuses.
    """
    inputs, shapes = _dynamic(decoder, most)
    try:
        with experts_by_token(decoder.model), torch.no_grad():
            return torch.export.export(decoder, inputs, dynamic_shapes=shapes, strict=False)
    except UserError:
        raise
    except Exception as error:  # each of its passes raises different errors
        raise refused(decoder.model, f"{runtime} with a cache", error) from error


def _program(decoder: CachedDecoder) -> Any:
    inputs, shapes = _dynamic(decoder, UNBOUNDED)
    names = [f"{layer}.{part}" for layer in range(len(inputs[1])) for part in ("key", "value")]
    with torch.no_grad():
        return torch.onnx.export(
            decoder,
            inputs,
            dynamo=True,
            verbose=False,
            dynamic_shapes=shapes,
            input_names=["input_ids", *(f"past_key_values.{name}" for name in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )


def _dynamic(decoder: CachedDecoder, most: int) -> tuple[tuple[Tensor, Cache], tuple[Any, ...]]:
    """Return example inputs, and their dimensions that are free up to a size."""
    past = [(torch.zeros(1, heads, 3, width), torch.zeros(1, heads, 3, width)) for heads, width in decoder.sizes()]
    tokens, before = (torch.export.Dim(name, max=max(most, LEAST_BOUND)) for name in ("tokens", "past"))
    return (torch.zeros(1, 2, dtype=torch.long), past), ({1: tokens}, [({2: before}, {2: before})] * len(past))


def _onnx(file: Path) -> Run:
    """Return a file's run on ONNX Runtime."""
    session = open_session(file)
    names = [each.name for each in session.get_inputs()][1:]

    def run(tokens: Ints, past: list[Array]) -> tuple[Array, list[Array]]:
        logits, *present = session.run(None, {"input_ids": tokens, **dict(zip(names, past, strict=True))})
        return logits, present

    return run


def steps_apart(decoder: CachedDecoder, run: Run, steps: Sequence[int] = CHECKED) -> float:
    """Return the largest difference of a file's logits, relative to the largest logit, over runs of several tokens.

    Args:
        steps: tokens of each run; each has the cache of those before.
    """
    past = decoder.empty()
    arrays = [each.numpy() for pair in past for each in pair]
    vocabulary = int(decoder.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    tokens = torch.randint(vocabulary, (1, sum(steps)), generator=torch.Generator().manual_seed(0))
    apart = largest = 0.0
    with torch.no_grad():
        for part in tokens.split(list(steps), 1):
            expected, past = decoder(part, past)
            logits, arrays = run(part.numpy(), arrays)
            apart = max(apart, float(np.abs(logits - expected.numpy()).max()))
            largest = max(largest, float(expected.abs().max()))
    return apart / (largest or 1.0)
