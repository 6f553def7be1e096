"""The elements of one codec on their way to their sum: an exchange encodes, adds and replaces parts and knows no format.

Every rank encodes every position exactly once in a step, whatever the exchange: as its own contribution, as the partial sum of
a ring, or as the finished sum that it owns. With error feedback what that one encoding loses stays on the rank that lost it, so
*delivered + residuals* always equals *gradients + residuals before* (Stich et al. 2018, Sparsified SGD with Memory; Karimireddy
et al. 2019, Error Feedback Fixes SignSGD).
"""

from __future__ import annotations

from typing import Protocol

import torch

from paceline import codecs
from paceline.codecs import Codec, PayloadError
from paceline.codecs.container import HEADER_BYTES
from paceline.codecs.counter import Key
from paceline.codecs.dense import Fp32
from paceline.codecs.ternary import Ternary, TernarySum
from paceline.training.collectives import NOTHING


class Stream(Protocol):
    """``count`` fp32 elements, first this rank's contribution, in the end the sum over the workers."""

    @property
    def count(self) -> int: ...

    def encode(self, start: int, stop: int, workers: int, exact: bool = False) -> torch.Tensor:
        """The message for elements ``start`` to ``stop``, which hold the sum of ``workers`` contributions; empty for none.

        ``exact`` sends them as fp32.
        """

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """Bytes of the message that any rank makes for such elements; None where it depends on their values.

        None for no elements too then: whether lengths are announced must be the same on every rank.
        """

    def settle(self, start: int, stop: int) -> None:
        """This rank's contribution takes part in a sum without a message: ``add`` comes next."""

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Add another rank's message. Raises PayloadError for a damaged one."""

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Replace the elements by a message. Raises PayloadError for a damaged one."""


class CodecStream:
    """A codec whose sums are encoded anew, with error feedback where ``residual`` is given.

    Args:
        values: the gradients; of any content where there is a residual.
        residual: the gradients and what is owed; each encoding takes from it what was sent.
        velocity: local momentum, which stops where an element is sent.
        key, first: draws of the stochastic rounding; element k takes draw ``first + k``.
    """

    def __init__(
        self,
        codec: Codec,
        values: torch.Tensor,
        key: Key,
        first: int,
        residual: torch.Tensor | None = None,
        velocity: torch.Tensor | None = None,
    ) -> None:
        self.codec, self.values, self.residual, self.velocity = codec, values, residual, velocity
        self._own = values if residual is None else residual  # this rank's contribution
        self._key, self._first = key, first
        self._fixed = codec.payload_bytes(_MANY) is not None

    @property
    def count(self) -> int:
        """Elements."""
        return self.values.shape[0]

    def encode(self, start: int, stop: int, workers: int, exact: bool = False) -> torch.Tensor:
        """A message of the codec; of fp32 where the codec would take more bytes than that."""
        if stop == start:
            return NOTHING
        values = (self._own if workers == 1 else self.values)[start:stop]
        message = _encode(_DENSE if exact else self.codec, values, self._key, self._first + start)
        if message.numel() > _dense_bytes(stop - start):
            message = _encode(_DENSE, values, self._key, 0)
        if self.residual is not None:
            left = self.residual[start:stop]
            if workers > 1:
                left.copy_(values)
            before = None if self.velocity is None else left.clone()
            codecs.decode_into(message, codecs.vector(left), codecs.SUBTRACT)
            if before is not None:  # sent elements are those that changed: a rounded one leaves a residual too
                self.velocity[start:stop].mul_(left == before)  # type: ignore[index]
        return message

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """See ``Stream``."""
        count = stop - start
        if exact:
            return _dense_bytes(count) if count else 0
        if not self._fixed:
            return None
        return min(self.codec.max_payload_bytes(count), _dense_bytes(count)) if count else 0

    def settle(self, start: int, stop: int) -> None:
        """As it is: nothing is lost."""
        if self._own is not self.values:
            self.values[start:stop] = self._own[start:stop]

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``."""
        self._decode(message, start, stop, codecs.ADD)

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``."""
        self._decode(message, start, stop, codecs.SET)

    def _decode(self, message: torch.Tensor, start: int, stop: int, mode: int) -> None:
        _decode(message, self.values[start:stop], mode, (type(self.codec), Fp32))


class TernaryStream:
    """TernGrad: two bits for one worker's ternary, the exact integer sum for several; nothing is quantised twice.

    Args:
        values: gradients divided by their tensor's shared scaler and clipped, so within -1 to 1; in the end integer sums.
        key, first: draws; element k takes draw ``first + k``.
    """

    def __init__(self, values: torch.Tensor, key: Key, first: int) -> None:
        self.values = values
        self._key, self._first = key, first
        self._one = Ternary(scale=1.0)

    @property
    def count(self) -> int:
        """Elements."""
        return self.values.shape[0]

    def encode(self, start: int, stop: int, workers: int, exact: bool = False) -> torch.Tensor:
        """See ``Stream``. A settled contribution encodes to itself: a magnitude of 1 is above every draw, 0 below."""
        if stop == start:
            return NOTHING
        return _encode(_DENSE if exact else self._codec(workers), self.values[start:stop], self._key, self._first + start)

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """See ``Stream``."""
        codec = _DENSE if exact else self._codec(workers)
        return codec.payload_bytes(stop - start) if stop > start else 0

    def settle(self, start: int, stop: int) -> None:
        """As the ternary that the others would have received."""
        if stop > start:
            self.set(self.encode(start, stop, 1), start, stop)

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``."""
        _decode(message, self.values[start:stop], codecs.ADD, (Ternary, TernarySum))

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``."""
        _decode(message, self.values[start:stop], codecs.SET, (Ternary, TernarySum, Fp32))

    def _codec(self, workers: int) -> Codec:
        return self._one if workers == 1 else TernarySum(workers=workers, scale=float(workers))


_DENSE = Fp32()
_MANY = 1 << 20  # elements; of few a layout of varying size may have but one


def _dense_bytes(count: int) -> int:
    return HEADER_BYTES + 4 * count


def _encode(codec: Codec, values: torch.Tensor, key: Key, start: int) -> torch.Tensor:
    return torch.as_tensor(codec.encode_with(codecs.vector(values), key, start))


def _decode(message: torch.Tensor, out: torch.Tensor, mode: int, kinds: tuple[type[Codec], ...]) -> None:
    if message.numel() or out.numel():
        try:
            codecs.decode_into(message, codecs.vector(out), mode, only=kinds)
        except ValueError as error:
            raise PayloadError(f"a message of another rank: {error}") from error
