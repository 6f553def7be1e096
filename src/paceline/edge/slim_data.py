"""Data that fits a network: its declared input, the default data, and a check of given data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models import InputSpec, model
from paceline.slimming.slim import in_order
from paceline.training.runs.data import LARGEST_SIDE, LEAST_SIDE, MOST_CHANNELS, Dataset
from paceline.training.runs.data import load as load_data
from paceline.training.runs.starting_model import mixed_seed
from paceline.workload import call_factory
from paceline.workload.factory import example_input

RANDOM = "random"
"""Name of the data of a prediction that was given none: random inputs of the network's declared shape, or of the one that is
stated after a colon."""
SCORES = "cross_entropy"
"""Loss of networks whose outputs are scores of classes."""


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """Input that a network declares.

    Attributes:
        spec: shape of one sample, and its range of tokens. ``scores``: the outputs are scores of classes.
    """

    spec: InputSpec
    scores: bool = True

    @property
    def text(self) -> str:
        """Description such as ``3x32x32`` or ``tokens below 50257 of shape 1024``."""
        shape = shape_text(self.spec.shape)
        return f"tokens below {self.spec.tokens} of shape {shape}" if self.spec.tokens else shape

    @property
    def digits(self) -> str:
        """Name of the digits in this shape; empty if they have no such shape."""
        if self.spec.tokens or len(self.spec.shape) != 3:
            return ""
        channels, *sides = self.spec.shape
        if channels > MOST_CHANNELS or not LEAST_SIDE <= min(sides) <= max(sides) <= LARGEST_SIDE:
            return ""
        shape = shape_text(self.spec.shape)
        return "digits" if shape == "1x28x28" else f"digits:{shape}"

    @property
    def fitting(self) -> str:
        """Data that fits, as the end of a sentence."""
        kind = f"int64 tokens below {self.spec.tokens}" if self.spec.tokens else "float32"
        own = f"module:function, with samples of {kind} of shape {shape_text(self.spec.shape)}"
        named = {"1x28x28": "mnist:DIR", "3x24x24": "cifar10:DIR"}.get(self.text, "")
        return " or ".join(filter(None, (self.digits, named, own)))


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape: ``3x32x32``."""
    return "x".join(map(str, shape)) or "scalar"


def declared_input(name: str) -> DeclaredInput | None:
    """Return the declared input of a named network, or of a function that returns a network and an example batch.

    Returns:
        None for a function that returns a network alone.

    Raises:
        UserError: an unknown name, or a function that fails.
    """
    if ":" not in name:
        entry = model(name)
        return DeclaredInput(entry.input, entry.loss == SCORES)
    built = call_factory(name)
    example = built[1] if isinstance(built, tuple) and len(built) > 1 else None
    if not isinstance(example, Tensor) or not example.dim():
        return None
    tokens = 0 if example.is_floating_point() else int(example.max()) + 1
    return DeclaredInput(InputSpec(tuple(example.shape[1:]), tokens))


def default_data(name: str) -> str:
    """Return the data at hand that fits a network.

    Raises:
        UserError: no data at hand fits; the data that would is named.
    """
    found = declared_input(name)
    if found is None:
        return "digits"
    if not found.scores:
        what = f"the outputs of {name} are no scores of classes, which `paceline slim` trains"
        raise UserError(what, "use `paceline.slim` in your own loop; `predict` needs no data")
    if not found.digits:
        what = f"no data at hand fits {name}, which takes {found.text}"
        raise UserError(what, f"give `data` {found.fitting}; `predict` needs none")
    return found.digits


def example_inputs(name: str, network: nn.Module, data: str, seed: int) -> tuple[Any, ...]:
    """Return one sample for a prediction: of the data, or random if ``data`` is ``RANDOM`` or ``random:3x32x32``.

    Raises:
        UserError: data that do not fit, or a network of unknown input without data.
    """
    kind, _, stated = data.partition(":")
    if kind == RANDOM and stated:
        return _stated_inputs(name, network, stated, seed)
    if data != RANDOM:
        found = load_data(data)
        check_fits(name, network, found)
        return (found.train_x[:1],)
    declared = declared_input(name)
    if declared is not None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mixed_seed(seed))
            return (declared.spec.example(1),)
    found = load_data("digits")
    if _failure(network, found.train_x[:1]):
        raise UserError(
            f"the input of {name} is unknown",
            "give `data`, or let the function return the network and an example batch; a prediction takes `input` 3x32x32",
        )
    return (found.train_x[:1],)


def _stated_inputs(name: str, network: nn.Module, text: str, seed: int) -> tuple[Any, ...]:
    """Return one sample of stated shapes: random numbers, or tokens 0. Raises UserError if the network does not take it."""
    given = example_input(text)

    def drawn(like: Tensor) -> Tensor:
        shape = (1, *like.shape[1:])
        return torch.randn(shape) if like.is_floating_point() else torch.zeros(shape, dtype=like.dtype)

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(mixed_seed(seed))
        named = isinstance(given, dict)
        inputs = {each: drawn(one) for each, one in given.items()} if named else tuple(map(drawn, given))
    found = in_order(network, inputs)
    if error := _failure(network, *found):
        raise UserError(f"{name} fails for an input of {text}: {error}", "give `input` as the network takes it")
    return found


def check_fits(name: str, network: nn.Module, data: Dataset) -> None:
    """Check that a network runs on a sample. Raises UserError if it fails on samples of another shape than it declares."""
    if not (error := _failure(network, data.train_x[:1])):
        return
    declared, shape = declared_input(name), tuple(data.train_x.shape[1:])
    tokens = not data.train_x.is_floating_point()
    if declared is None:
        what = f"{name} fails for a sample of {data.name}, {shape_text(shape)}: {error}"
        raise UserError(what, "give `data` that fits it")
    if shape != declared.spec.shape or tokens != bool(declared.spec.tokens):
        what = f"samples of {data.name} are {shape_text(shape)}, and {name} takes {declared.text}"
        raise UserError(what, f"give `data` {declared.fitting}")


def _failure(network: nn.Module, *sample: Any) -> str:
    """Return the error of a network for a sample in one line; empty without one."""
    try:
        with torch.no_grad():
            network(*sample)
    except Exception as error:  # a network's own
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""
