"""Overlap of pushes to a parameter server with its pulls, on CPUs.

Gloo sends a message when the peer has announced its receive, and the announcement waits behind this rank's own messages on the
same connection (gloo, ``transport/tcp/pair.cc``). A worker announces the receive of a sum after it has sent its push, and three
chunks are under way (``training/exchanges/pipeline.py``). If all workers advance together, three pushes and three pulls take
turns, and the server's link works in one direction at a time. TCP does not share a link evenly, though. A worker that has sent
its pushes early receives sums while the others still push, and its lead grows from chunk to chunk.

If lengths of messages travel first, receives are announced later still, and nothing overlaps. On GPUs all chunks go together.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array

CHUNKS = (1, 2, 3, 4, 6, 9, 12, 18, 30, 60)
HIDDEN = {
    1: (0.0,) * len(CHUNKS),
    2: (0.0, 0.17, 0.17, 0.25, 0.39, 0.48, 0.53, 0.57, 0.61, 0.64),
    3: (0.0, 0.17, 0.17, 0.28, 0.33, 0.37, 0.39, 0.42, 0.43, 0.45),
    4: (0.0, 0.17, 0.17, 0.28, 0.34, 0.42, 0.46, 0.50, 0.53, 0.56),
}
"""Share of the shorter of push and pull that overlaps, by workers of a server (4: four to 32) and ``CHUNKS``.

Simulated: a fluid share of the server's link in each direction, and connections whose messages keep their order
(``tests/prediction/exchange/test_server_overlap.py``). Workers' shares of the link are 1 to 1.5, evenly spaced. This was chosen
in sight of the dense rows of WA in ``benchmarks/results/inceptionn_lab.csv``. With 1 to 1.2 and 1 to 2 an exchange changes by
6 % at most.
"""


def hidden_share(chunks: Array, workers: int, servers: int) -> Array:
    """Return the share of the shorter of push and pull that overlaps, for each number of chunks.

    With more servers a server also pushes and pulls itself, so less is free; with one at each worker both directions are busy.
    """
    if workers < 2:
        return np.zeros(len(chunks))
    table = HIDDEN[min(workers - 1, max(HIDDEN))]
    free = (workers - servers) / (workers - 1)
    return free * np.interp(np.log(np.maximum(chunks, 1)), np.log(CHUNKS), table)
