"""Times of decoders with a cache: of one token after some context, and of a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.slimming.export.onnx_export import open_session
from paceline.slimming.latency.latency import Latency, alternating, own_clock, pinned

CONTEXT, PROMPT = 128, 128
"""Default numbers of tokens before a decoded one, and of a prompt."""


@dataclass(frozen=True, slots=True)
class TokenLatency:
    """Seconds of a decoded token after ``context`` tokens, and of a prompt of ``prompt`` tokens."""

    decode: Latency
    prefill: Latency
    context: int
    prompt: int


class TokenProgram(ABC):
    """A decoder with a cache in a runtime."""

    @abstractmethod
    def empty(self) -> list[Array]:
        """Return the cache of no tokens: keys and values of each layer, (1, heads, 0, width)."""

    @abstractmethod
    def call(self, tokens: Ints, past: Sequence[Array]) -> Callable[[], Sequence[Any]]:
        """Return a call that runs further tokens, of shape (1, tokens), after those of a cache.

        Its result is the logits (1, tokens, vocabulary), then the longer keys and values of each layer.
        """

    def __call__(self, tokens: Ints, past: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Return the logits of further tokens, and the longer cache.

        Args:
            past: ``empty()`` or the cache of the call before.
        """
        logits, *present = map(np.asarray, self.call(tokens, past)())
        return logits, present

    def prefill(self, tokens: Ints) -> Callable[[], object]:
        """Return a call that runs a prompt of shape (1, tokens)."""
        return self.call(tokens, self.empty())

    def decode(self, tokens: Ints) -> Callable[[], object]:
        """Return a call that runs the last of these tokens with the cache of all before it."""
        _, past = self(tokens[:, :-1], self.empty())
        return self.call(tokens[:, -1:], past)

    def perplexity(self, tokens: Ints, window: int = PROMPT, most: int = 0) -> float:
        """Return the perplexity of a text, in windows of this many tokens that each begin without a cache.

        Args:
            tokens: of shape (tokens,), at least 2. ``most``: windows that count, evenly over the text; 0: all.
        """
        lost = count = 0.0
        starts = list(range(0, len(tokens) - 1, window))
        if 0 < most < len(starts):
            starts = [starts[round(each)] for each in np.linspace(0, len(starts) - 2, most)]
        for start in starts:
            part = tokens[start : start + window + 1]
            logits, _ = self(part[None, :-1], self.empty())
            rows = logits[0].astype(np.float64)
            rows -= rows.max(-1, keepdims=True)
            chosen = np.take_along_axis(rows, part[1:, None].astype(np.int64), 1)[:, 0]
            lost += float((np.log(np.exp(rows).sum(-1)) - chosen).sum())
            count += len(chosen)
        return exp(lost / count)


class TokenRunner(TokenProgram):
    """An ONNX decoder with a cache (``cached_decoder``) in ONNX Runtime.

    Args:
        file: its inputs are ``input_ids`` and ``past_key_values.N.key`` and ``.value``, its outputs ``logits`` and then
            ``present.N.key`` and ``.value``. ``attention_mask`` and ``position_ids`` are given if the file has them.

    Raises:
        UserError: a file without these inputs, or ONNX Runtime is not installed.
    """

    def __init__(self, file: str | Path, threads: int = 1) -> None:
        self._session = open_session(file, threads)
        inputs = self._session.get_inputs()
        self._names = tuple(each.name for each in inputs)
        self._past = tuple(each for each in inputs if each.name.startswith("past_key_values."))
        if "input_ids" not in self._names or not self._past:
            raise UserError(f"{file} has no cache of keys and values", "give a file of `decoder_to_onnx`")

    def empty(self) -> list[Array]:
        """Return the cache of no tokens."""
        return [np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in self._past]

    def call(self, tokens: Ints, past: Sequence[Array]) -> Callable[[], Sequence[Any]]:
        """Return a call of the session."""
        return partial(self._session.run, None, self._feed(tokens, past))

    def _feed(self, tokens: Ints, past: Sequence[Array]) -> dict[str, Array]:
        before, count = past[0].shape[2], tokens.shape[1]
        given: dict[str, Any] = {
            "input_ids": tokens.astype(np.int64),
            "attention_mask": np.ones((1, before + count), np.int64),
            "position_ids": np.arange(before, before + count, dtype=np.int64)[None],
            **{each.name: array for each, array in zip(self._past, past, strict=True)},
        }
        return {name: given[name] for name in self._names}


def token_latencies(
    files: Mapping[str, str | Path],
    vocabulary: int,
    *,
    context: int = CONTEXT,
    prompt: int = PROMPT,
    threads: int = 1,
    turns: int | None = None,
    open_program: Callable[[str | Path, int], TokenProgram] = TokenRunner,
) -> dict[str, TokenLatency]:
    """Measure decoders by name, in turns with the first: ratios to it, as of ``alternating``.

    Args:
        files: of a ``TokenRuntime``, or quantised ones. ``vocabulary``: tokens are drawn from it.
        context: tokens in the cache when one is decoded. ``prompt``: tokens of the prefill. ``turns``: as of ``alternating``.
        open_program: opens a file for a number of threads.

    Raises:
        UserError: fewer than one token of context or prompt; as ``TokenRunner``.
    """
    for name, count in (("context", context), ("prompt", prompt)):
        if count < 1:
            raise UserError(f"a {name} of {count} tokens", "give a whole number from 1 up")
    tokens = np.random.default_rng(0).integers(0, vocabulary, (1, max(context + 1, prompt)))
    with pinned(threads):
        runners = {name: open_program(file, threads) for name, file in files.items()}
        clock = own_clock(threads)
        decode = alternating({name: each.decode(tokens[:, : context + 1]) for name, each in runners.items()}, turns, clock)
        prefill = alternating({name: each.prefill(tokens[:, :prompt]) for name, each in runners.items()}, turns, clock)
    return {name: TokenLatency(decode[name], prefill[name], context, prompt) for name in files}
