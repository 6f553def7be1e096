"""Stream of elements of a codec in the network cards: the host sends fp32, and receives values that the cards have coded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline import codecs
from paceline.codecs import Codec, PayloadError
from paceline.codecs.counter import Key
from paceline.training.exchanges.wires.collectives import NOTHING, Wire
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


class CardWire(Wire):
    """Collectives over a process group whose sockets are marked: the cards compress every fp32 message of it.

    Attributes:
        exact: wire of the same ranks whose messages arrive unchanged.
    """

    def __init__(self, marked: Wire, exact: Wire) -> None:
        super().__init__(marked.group, marked.device, marked.meter, marked.timeout_s, marked.soundness)
        self._marked, self._exact = marked, exact  # the group is released with ``marked``

    @property
    def exact(self) -> Wire:
        """Wire without compression; see ``Wire``."""
        return self._exact


class CardStream:
    """A ``Stream`` of plain fp32 messages. The codec on the host is used only for completed sums.

    A card codes sent values, not those that its host keeps. So the owner of a completed sum passes it through the codec before
    sending it. A faithful INCEPTIONN value codes to itself, except -0, which codes to 0 and is sent as 0 therefore. So all
    ranks receive, and the owner keeps, the same bits.

    Args:
        codec: codec of the cards.
        values: the gradients, (count,), fp32; at the end their sum.
        workers: contributions of a finished sum.
    """

    def __init__(self, codec: Codec, values: torch.Tensor, workers: int) -> None:
        self._codec, self.values, self._workers = codec, values, workers
        self.block = codec.alignment

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.values.shape[0]

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message, as in ``Stream``: values for the card to code, or a completed sum after the codec."""
        if stop == start:
            return NOTHING
        values = buffers.floats(stop - start, self.values.device).copy_(self.values[start:stop])
        if workers == self._workers and not exact:
            out = buffers.take(codecs.max_payload_bytes(self._codec, stop - start), values.device)
            message = torch.as_tensor(codecs.encode(self._codec, values, Key(0, 0), 0, out=out))
            codecs.decode(message, values, codecs.SET, only=(type(self._codec),))
            values += 0.0
        return values.view(torch.uint8)

    def encode_each(
        self, spans: Sequence[tuple[int, int]], workers: int, exact: bool = False, buffers: Buffers = FRESH
    ) -> list[torch.Tensor]:
        """Return several messages; see ``Stream``."""
        return [self.encode(*span, workers, exact, buffers) for span in spans]

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int:
        """Return the bytes of a message; see ``Stream``."""
        return 4 * (stop - start)

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution, which is exact; see ``Stream``."""

    def add(self, message: torch.Tensor, start: int, stop: int, workers: int = 1) -> None:
        """Add a message; see ``Stream``."""
        self.values[start:stop] += self._received(message, start, stop)

    def set(self, message: torch.Tensor, start: int, stop: int, workers: int = 1, exact: bool = False) -> None:
        """Replace elements by a message; see ``Stream``."""
        self.values[start:stop] = self._received(message, start, stop)

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace elements by the sum of all messages; see ``Stream``."""
        for index, message in enumerate(messages):
            put = self.add if index else self.set
            put(message, start, stop)

    def _received(self, message: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        if message.numel() != 4 * (stop - start):
            raise PayloadError(f"a message of {message.numel()} bytes for {stop - start} fp32 elements")
        return message.view(torch.float32)
