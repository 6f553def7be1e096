"""What every codec is: parameters, a layout, and the two kernels in NumPy that are its specification.

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
"""What decoding does to ``out``: replace it, add to it, subtract from it."""

NON_FINITE = "NaN or infinity has no form in this codec; send this tensor dense"


class MessageScaling(NamedTuple):
    """How one of several tensors enters a message that they share.

    Attributes:
        bound: its elements are clipped to +-bound,
        factor: and multiplied by this (fp32).
        unit: what 1 stands for in the sum of the messages.
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
    """Whether ``summing`` gives codecs that hold sums exactly: then no sum is rounded."""
    agrees: ClassVar[bool] = False
    """Whether ranks agree on a number for each tensor before they encode it: on the largest that ``prepare`` gives."""

    # What a subclass says of its bytes.

    def parameters(self) -> bytes:
        """At most 8 bytes that a decoder needs beside the body."""
        return b""

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """The codec that wrote a payload with these parameters (8 bytes). Raises PayloadError for impossible ones."""
        if any(parameters):
            raise PayloadError(f"{cls.name} has no parameters, the payload has {parameters.hex()}")
        return cls()

    @abstractmethod
    def body_range(self, count: int) -> tuple[int, int]:
        """The least and the most bytes that the body of ``count`` elements can take; equal for a layout of fixed size."""

    def resolved(self, x: F32, statistics: Statistics) -> Self:
        """This codec with the parameters that depend on the values of ``x``. Raises ValueError for what it cannot hold."""
        return self

    # The reference kernels.

    @abstractmethod
    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write ``x`` into ``body``, return the bytes written. Element k takes draw ``start + k`` of ``key``."""

    @abstractmethod
    def decode_body(self, body: Bytes, count: int) -> F32:
        """The ``count`` values of a body. Raises PayloadError for a body that no encoder writes."""

    def decode_onto(self, body: Bytes, out: F32, mode: int) -> None:
        """Put the values of a body into ``out``, add or subtract them. Raises as ``decode_body``."""
        apply(out, self.decode_body(body, out.shape[0]), mode)

    # What an exchange of several ranks asks.

    def prepare(self, m: Moments) -> float:
        """What this rank brings to the agreement on one tensor, of fp32 and at least 0. Only of a codec that ``agrees``."""
        return 0.0

    def finish(self, own: float, agreed: float) -> MessageScaling:
        """How that tensor is encoded by ``summing(1)``. Only of a codec that ``agrees``.

        Args:
            own: what ``prepare`` gave here.
            agreed: the largest that it gave on any rank.
        """
        return MessageScaling(float("inf"), 1.0, 1.0)

    def summing(self, workers: int) -> Codec:
        """The codec for the sum of what ``workers`` ranks encoded; for 1, of what one rank encodes."""
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
    """Raises UserError for an option outside its range."""
    if not condition:
        raise UserError(message, fix)
