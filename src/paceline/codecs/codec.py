"""Base class of the codecs: parameters, a layout, and two reference kernels in NumPy.

A codec is a value. Headers, devices and other implementations are in ``api`` and ``backends``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.container import PayloadError
from paceline.codecs.moments import Moments, Statistics
from paceline.errors import UserError

SET, ADD, SUBTRACT = 0, 1, 2
"""Modes of decoding: replace ``out``, add to it, subtract from it."""

NON_FINITE = "NaN or infinity has no form in this codec; send this tensor dense"


class MessageScaling(NamedTuple):
    """Scaling of one of several tensors in a shared message.

    Attributes:
        bound: its elements are clipped to +-bound,
        factor: and multiplied by this (fp32).
        unit: the value of 1 in the sum of the messages.
    """

    bound: float
    factor: float
    unit: float


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A wire format with its parameters."""

    name: ClassVar[str]
    code: ClassVar[int]
    of_sums: ClassVar[bool] = False
    """True if it holds sums of another codec. Users do not name it."""
    exact_sums: ClassVar[bool] = False
    """True if codecs of ``summing`` hold sums exactly, without rounding."""
    agrees: ClassVar[bool] = False
    """True if ranks agree on a number for each tensor before encoding: the largest result of ``prepare``."""
    pads_with_mean: ClassVar[bool] = False
    """True if the scale of a block is a mean magnitude, which padding with zeros would change."""

    # Layout, defined by subclasses.

    @property
    def alignment(self) -> int:
        """Elements that are coded together, as with one scale. Exchanges begin every tensor with such a block. 1: none."""
        return 1

    def parameters(self) -> bytes:
        """Parameters that a decoder needs in addition to the body; at most 8 bytes."""
        return b""

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """Return the codec that wrote a payload with these parameters (8 bytes). Raises PayloadError for impossible ones."""
        if any(parameters):
            raise PayloadError(f"{cls.name} has no parameters, the payload has {parameters.hex()}")
        return cls()

    @abstractmethod
    def body_range(self, count: int) -> tuple[int, int]:
        """Return the minimum and maximum size in bytes of a body of ``count`` elements; equal if the layout has a fixed
        size."""

    def resolved(self, x: F32, statistics: Statistics) -> Self:
        """Return this codec with the parameters that depend on ``x``. Raises ValueError for values that it cannot encode."""
        return self

    # The reference kernels.

    @abstractmethod
    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write ``x`` into ``body`` and return the number of bytes. Element k uses draw ``start + k`` of ``key``."""

    @abstractmethod
    def decode_body(self, body: Bytes, count: int) -> F32:
        """Return the ``count`` values of a body. Raises PayloadError for a body that no encoder writes."""

    def decode_onto(self, body: Bytes, out: F32, mode: int) -> None:
        """Write the values of a body into ``out``, add them to it or subtract them from it. Raises as ``decode_body``."""
        apply(out, self.decode_body(body, out.shape[0]), mode)

    # For exchanges of several ranks.

    def prepare(self, m: Moments) -> float:
        """Return this rank's contribution (fp32, at least 0) to the agreement on one tensor. Only for a codec that
        ``agrees``."""
        return 0.0

    def prepare_each(self, sigma: Any, peak: Any) -> Any:
        """Return ``prepare`` of several tensors with these moments, all three as torch tensors of fp32 on any device."""
        return peak * 0.0

    def finish(self, own: float, agreed: float) -> MessageScaling:
        """Return how ``summing(1)`` encodes the tensor after the agreement. Only for a codec that ``agrees``.

        Args:
            own: result of ``prepare`` here.
            agreed: the largest result on any rank.
        """
        return MessageScaling(float("inf"), 1.0, 1.0)

    def summing(self, workers: int) -> Codec:
        """Return the codec for the sum of ``workers`` encoded gradients; with 1, the codec of a single rank."""
        return self


def apply(out: F32, values: F32, mode: int) -> None:
    """Write ``values`` into ``out``, add them to it or subtract them from it; last step of the reference decoder."""
    if mode == SET:
        out[:] = values
    elif mode == ADD:
        out += values
    else:
        out -= values


def legal(condition: bool, message: str, fix: str) -> None:
    """Raise UserError for an option outside its legal range."""
    if not condition:
        raise UserError(message, fix)
