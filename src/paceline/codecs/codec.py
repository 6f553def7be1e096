"""Base of the codecs: parameters, a layout, and the two kernels in NumPy that are its specification.

A codec is a value. It knows no other implementation of itself, no header and no device: ``api`` adds those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

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
    exact_sums: ClassVar[bool] = False
    """True if codecs of ``summing`` hold sums exactly, without rounding."""
    agrees: ClassVar[bool] = False
    """True if ranks agree on a number for each tensor before encoding: the largest result of ``prepare``."""

    # Layout, defined by subclasses.

    def parameters(self) -> bytes:
        """Parameters that a decoder needs in addition to the body, at most 8 bytes."""
        return b""

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """Return the codec that wrote a payload with these parameters (8 bytes). Raises PayloadError for impossible ones."""
        if any(parameters):
            raise PayloadError(f"{cls.name} has no parameters, the payload has {parameters.hex()}")
        return cls()

    @abstractmethod
    def body_range(self, count: int) -> tuple[int, int]:
        """Return the least and the most bytes of a body of ``count`` elements; equal for a layout of fixed size."""

    def resolved(self, x: F32, statistics: Statistics) -> Self:
        """Return this codec with the parameters that depend on ``x``. Raises ValueError for values that it cannot encode."""
        return self

    # The reference kernels.

    @abstractmethod
    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write ``x`` into ``body``, return the bytes written. Element k takes draw ``start + k`` of ``key``."""

    @abstractmethod
    def decode_body(self, body: Bytes, count: int) -> F32:
        """Return the ``count`` values of a body. Raises PayloadError for a body that no encoder writes."""

    def decode_onto(self, body: Bytes, out: F32, mode: int) -> None:
        """Put the values of a body into ``out``, add or subtract them. Raises as ``decode_body``."""
        apply(out, self.decode_body(body, out.shape[0]), mode)

    # For exchanges of several ranks.

    def prepare(self, m: Moments) -> float:
        """Return this rank's contribution to the agreement on one tensor, fp32 and at least 0. Only for a codec that
        ``agrees``.
        """
        return 0.0

    def finish(self, own: float, agreed: float) -> MessageScaling:
        """Return how that tensor is encoded by ``summing(1)``. Only for a codec that ``agrees``.

        Args:
            own: result of ``prepare`` here.
            agreed: the largest result on any rank.
        """
        return MessageScaling(float("inf"), 1.0, 1.0)

    def summing(self, workers: int) -> Codec:
        """Return the codec for the sum of what ``workers`` ranks encoded; for 1, of what one rank encodes."""
        return self


def apply(out: F32, values: F32, mode: int) -> None:
    """The reference's last step: put ``values`` into ``out``, add or subtract them."""
    if mode == SET:
        out[:] = values
    elif mode == ADD:
        out += values
    else:
        out -= values


def legal(condition: bool, message: str, fix: str) -> None:
    """Raise UserError for an option outside its range."""
    if not condition:
        raise UserError(message, fix)
