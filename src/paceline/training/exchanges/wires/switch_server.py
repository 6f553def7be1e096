"""Process of a switch that adds, on the bridge of a lab.

``python -m paceline.training.exchanges.wires.switch_server ADDRESS PORT`` starts it.

It has no gradients and no weights. It receives one message of every worker, adds them as the codec's sums are defined, and
sends the sum to all: integers for ``ternary``, as in SwitchML and ATP (Sapio et al., NSDI 2021; Lao et al., NSDI 2021), fp32
for ``fp32``, as in SHARP (Graham et al., COM-HPC 2016).
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline import codecs
from paceline.codecs import Codec, Key
from paceline.codecs.container import HEADER_BYTES, read_header
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.ternary import Ternary
from paceline.training.exchanges.wires.switch_wire import CONTROL, STORE, meet_switch

FOREVER = timedelta(days=365)
AHEAD = 3  # chunks received but not yet added: as many as a worker has in flight


def add_messages(messages: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the message of the sum of several workers' messages (uint8), in their order.

    Raises:
        PayloadError: a damaged message, or one of another codec than ``fp32`` and ``ternary``.
    """
    total = torch.from_numpy(codecs.decode(messages[0], only=(Fp32, Ternary)))
    for message in messages[1:]:
        codecs.decode(message, total, codecs.ADD, only=(Fp32, Ternary))
    header, _ = read_header(messages[0][:HEADER_BYTES].numpy().tobytes())
    codec: Codec = Ternary(scale=1.0) if header.codec == Ternary.code else Fp32()
    return torch.as_tensor(codecs.encode(codec.summing(len(messages)), total, Key(0, 0), 0))


def serve_group(up: Any, down: Any, workers: int) -> None:
    """Add the messages of one group of workers until they leave, which raises the engine's RuntimeError and ends the loop."""
    received: queue.Queue[tuple[int, list[torch.Tensor]] | None] = queue.Queue(AHEAD)
    threading.Thread(target=_receive, args=(up, workers, received), daemon=True).start()
    sent: list[tuple[Any, torch.Tensor]] = []
    while (arrived := received.get()) is not None:
        tag, messages = arrived
        try:
            total = add_messages(messages)
        except codecs.PayloadError as error:
            print(f"the switch ends: {error}", file=sys.stderr, flush=True)
            os._exit(1)  # closes every connection: the workers learn it at once, where a thread's end would leave them waiting
        try:
            sent = [(work, data) for work, data in sent if not work.is_completed()]
            sent += [(down.send([total], worker, tag), total) for worker in range(workers)]
        except RuntimeError:
            return


def _receive(group: Any, workers: int, received: queue.Queue[tuple[int, list[torch.Tensor]] | None]) -> None:
    announced = torch.empty(2, dtype=torch.int64)
    try:
        while True:
            group.recv([announced], 0, CONTROL).wait(FOREVER)
            tag, size = announced.tolist()
            messages = [torch.empty(size, dtype=torch.uint8) for _ in range(workers)]
            for work in [group.recv([message], worker, tag) for worker, message in enumerate(messages)]:
                work.wait()
            received.put((tag, messages))
    except RuntimeError:
        received.put(None)


def main() -> None:
    """Serve the store at the command's address and port, and groups that ranks announce there, until a signal."""
    address, port = sys.argv[1:]
    torch.set_num_threads(1)
    store: Any = getattr(dist, STORE)(address, int(port), is_master=True, timeout=FOREVER, wait_for_workers=False)
    number = 0
    while True:
        number += 1
        workers, timeout_s = store.get(f"group/{number}").decode().split()
        own = store.clone()  # a store serves one call at a time, and the next group is waited for below
        threading.Thread(target=_meet, args=(own, number, int(workers), float(timeout_s)), daemon=True).start()


def _meet(store: Any, number: int, workers: int, timeout_s: float) -> None:
    up, down = meet_switch(store, number, workers, workers, timedelta(seconds=timeout_s))
    serve_group(up, down, workers)


if __name__ == "__main__":
    main()
