"""Steps of a lab whose hosts share this machine's processors, from rows of other benchmarks.

A step of n hosts on p processors takes at least the processors' time for all n exchanges. Its costs were measured in other
rows than those that are predicted:

- A byte from one host to another, and an element's exchange in a hook: processor seconds of a step of AlexNet on four hosts at
  1 Gb/s (``step_processor.csv``). Through veth pair, bridge and token bucket a byte takes 0.61 ns for stock DDP and 0.73 ns for
  TernGrad. Through loopback, as ``machine.py`` measures it, it takes 0.18 ns.
- A message and its answer: ``message_processor.csv``. Their number grows with the hosts.
- The work of autograd and Python on a tensor in a step of one device alone: ``predict_lab.csv``.
- The wait of a small message while other hosts hold the processors: ``sharded_lab.csv``. It is 0 if each host has a processor.

No constant was fitted to ``speedup_lab.csv`` and ``inceptionn_lab.csv``, but the list of costs was made in sight of their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import lab_cases
from rows import read

from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.strategy import Strategy
from paceline.strategy.phase import Phase
from paceline.workload import Workload

RESULTS = Path(__file__).parent / "results"
LABELS = {"dense": "DDP", "terngrad": "TernGrad, sharded"}
"""Compressions whose processor time is known, and their names in ``step_processor.csv``."""


@dataclass(frozen=True)
class SharedHosts:
    """Costs of hosts that share processors, in seconds of one processor.

    Attributes:
        processors: number of processors.
        byte_s: for a byte that a host sends and another receives, by compression.
        element_s: for an element's exchange on one host, without messages and bytes, by compression.
        message_s: for a message to a peer and one from it.
        tensor_s: seconds that a tensor adds to a step of one device alone.
        hop_s: wait of a small message while hosts share processors.
    """

    processors: int
    byte_s: Mapping[str, float]
    element_s: Mapping[str, float]
    message_s: float
    tensor_s: float
    hop_s: float

    def step(self, net: str, hosts: int, link: str, compression: str, compute_s: float, overlap: bool = True) -> float:
        """Return the predicted seconds of a step with paced compute."""
        table = Workload.named(net)
        case = {"compression": "torch:dense" if compression == "dense" else compression}
        alone = compute_s + self.tensor_s * len(table.parameters)
        shared = hosts > self.processors
        guess = lab_cases.predicted(
            table,
            hosts,
            link,
            case,
            alone,
            0.0,
            overlap,
            codec_cores=min(1.0, self.processors / hosts),
            hop_s=self.hop_s if shared else 0.0,
        )
        first = min((event.start_s for event in guess.timeline if event.lane in ("network", "codec")), default=compute_s)
        exchange = self.exchange_s(table, hosts, compression, guess.wire_bytes_per_device)
        return max(guess.step_time_s, first + hosts * exchange / self.processors)

    def exchange_s(self, table: Workload, hosts: int, compression: str, sent: float) -> float:
        """Return the processor seconds of one host's exchange, in which it sends so many bytes."""
        counted = self.message_s * messages(table, hosts, compression) if compression != "dense" else 0.0
        return table.num_parameters * self.element_s[compression] + sent * self.byte_s[compression] + counted


def messages(table: Workload, hosts: int, compression: str) -> int:
    """Return the messages that a host sends in a step's pushes and pulls; it receives as many."""
    strategy = Strategy.of(world_size=hosts, global_batch_size=hosts, compression=compression)
    pieces = [piece.what for piece in exchange_plan(table, strategy, hosts).pieces]
    return (hosts - 1) * sum(what.rounds for what in pieces if isinstance(what, Phase) and what.pattern in ("push", "pull"))


@cache
def shared_hosts() -> SharedHosts:
    """Return the costs on the machine of the results."""
    message_s = median(row["processor_s"] for row in read(RESULTS / "message_processor.csv"))
    steps = {row["label"]: row for row in read(RESULTS / "step_processor.csv")}
    table = Workload.named(steps["DDP"]["network"])
    byte_s, element_s = {}, {}
    for compression, label in LABELS.items():
        row = steps[label]
        byte_s[compression] = row["engine_system_s"] / (1e6 * row["socket_mb"])
        counted = message_s * messages(table, row["hosts"], compression) if compression != "dense" else 0.0
        element_s[compression] = (row["processor_s"] - row["engine_system_s"] - counted) / table.num_parameters
    alone: dict[str, Any] = read(RESULTS / "predict_lab.csv")[0]
    tensor_s = (alone["alone_s"] - alone["compute_s"]) / len(Workload.named(alone["network"]).parameters)
    hop_s = median(row["hop_s"] for row in read(RESULTS / "sharded_lab.csv"))
    return SharedHosts(alone["cores"], byte_s, element_s, message_s, tensor_s, hop_s)


__all__ = ["SharedHosts", "messages", "shared_hosts"]
