"""Language models and texts from files: a folder in Hugging Face's format, and a text in tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UserError, shorten

BYTES = 256
"""Words of a vocabulary of bytes."""
TEST, TUNE = 0.1, 0.05
"""Shares of a text that are held out, its end, and that decide between candidates, just before."""
LEAST_WINDOWS = 4
"""Windows of tokens that each part of a text has at least."""
NAMED = 4
"""Most weights that a refusal names."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")


@dataclass(frozen=True)
class Checkpoint:
    """A language model of a folder.

    Attributes:
        model: in eval mode, in fp32 on the CPU. ``tokenizer``: as its files are; None for tokens that are bytes.
        random: the folder has no weights, so they are random.
    """

    name: str
    model: nn.Module
    tokenizer: Callable[[str], list[int]] | None
    random: bool

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    def tokens(self, text: str) -> Tensor:
        """Return a text as tokens, shape (tokens,). Raises UserError if tokens or bytes exceed the vocabulary."""
        if self.tokenizer is not None:
            found = torch.tensor(self.tokenizer(text))
            if len(found) and int(found.max()) >= self.vocabulary:
                what = f"the tokenizer of {self.name} gives token {int(found.max())}, and its model has {self.vocabulary} words"
                raise UserError(what, "give the tokenizer of this model")
            return found
        if self.vocabulary < BYTES:
            what = f"{self.name} has no tokenizer.json, and its vocabulary of {self.vocabulary} words holds no bytes"
            raise UserError(what, "add the tokenizer's files to the folder")
        return torch.tensor(list(text.encode()))


def load_checkpoint(path: str | Path, seed: int = 0) -> Checkpoint:
    """Load a folder with ``config.json`` and safetensors. Without weights they are random.

    Raises:
        UserError: no such folder, no causal language model, a configuration or weights that transformers refuses, weights
            that are missing or too many, or transformers is not installed.
    """
    folder = Path(path)
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} has no readable config.json", "give a folder in Hugging Face's format") from error
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UserError("transformers is not installed", "pip install 'paceline[hub]'") from error
    random = not any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    auto = transformers.AutoModelForCausalLM
    try:
        if random:
            torch.manual_seed(seed)
            model = auto.from_config(transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
        else:
            model = with_its_weights(auto, folder, dtype=torch.float32)
    except UserError:
        raise
    except Exception as error:  # transformers raises different errors
        what = f"transformers cannot load {path} ({kind or 'no model_type'}): {shorten(str(error))}"
        raise UserError(what, "give a checkpoint for causal language modelling") from error
    return Checkpoint(folder.name, model.eval(), _tokenizer(folder), random)


def with_its_weights(kind: Any, folder: Path, **options: Any) -> nn.Module:
    """Load a model of a class of transformers, all of whose weights are those of the folder. Tied weights may be missing.

    Raises:
        UserError: weights that are missing, which transformers would draw at random, or that it would leave out.
    """
    model, found = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    for names, what in (
        (found["missing_keys"], "lacks the weights"),
        (found["unexpected_keys"], f"has weights that {type(model).__name__} does not"),
    ):
        if names:
            some = ", ".join(sorted(names)[:NAMED]) + f" and {len(names) - NAMED} more" * (len(names) > NAMED)
            raise UserError(
                f"{folder} {what}: {some}", "give the complete checkpoint of one model; no weight is made up or left out"
            )
    loaded: nn.Module = model
    return loaded


def _tokenizer(folder: Path) -> Callable[[str], list[int]] | None:
    """Return the encoder of the folder's tokenizer, without marks for begin and end; None if it has none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    try:
        import transformers

        file, tokenizer = folder / "tokenizer.json", transformers.AutoTokenizer
        if file.is_file():
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
        else:
            tokenizer = tokenizer.from_pretrained(folder, local_files_only=True)
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False))
    except Exception as error:  # as above
        raise UserError(f"the tokenizer of {folder} cannot be read: {shorten(str(error))}", "repair its files") from error


@dataclass(frozen=True)
class TextParts:
    """Tokens of the parts of a text, each of shape (tokens,): for training, to decide between candidates, held out."""

    train: Tensor
    tune: Tensor
    test: Tensor

    @classmethod
    def of(cls, tokens: Tensor, window: int) -> TextParts:
        """Cut a text: the end is held out. Raises UserError for a text of too few windows."""
        test, tune = round(TEST * len(tokens)), round(TUNE * len(tokens))
        if tune < LEAST_WINDOWS * window:
            least = round(LEAST_WINDOWS * window / TUNE)
            raise UserError(f"a text of {len(tokens):,} tokens", f"give at least {least:,} for windows of {window} tokens")
        first = len(tokens) - test - tune
        return cls(tokens[:first], tokens[first : first + tune], tokens[first + tune :])


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8. Raises UserError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the text {path}: {error}", "give a text file in UTF-8") from error
