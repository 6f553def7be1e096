"""Settings of a run of peers: its store, and when an exchange takes place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError, check_count, shown
from paceline.strategy import GradientExchange, LocalSteps
from paceline.training.attach.attach_options import is_number


@dataclass(frozen=True)
class Peers:
    """Peers of a run with local steps. Each is one job, of one process or a ``torchrun``, that may come and go.

    Attributes:
        store: address ``host:port`` of the run's store, which ``python -m paceline.training.attach.peers host:port`` hosts; or
            a ``torch.distributed`` store.
        run: name of the run, if several share a store.
        name: name of this peer in messages; empty: host and process.
        min_peers: fewest peers of an exchange. With fewer, those that are there wait.
        patience_s: seconds without a sign of life after which a peer counts as lost.

    Raises:
        UserError: a value of a wrong type or out of range, with the legal ones.
    """

    store: Any
    run: str = "run"
    name: str = ""
    min_peers: int = 1
    patience_s: float = 10.0

    def __post_init__(self) -> None:
        if isinstance(self.store, str):
            address(self.store)
        for field in ("run", "name"):
            if not isinstance(getattr(self, field), str):
                raise UserError(f"{field}={shown(getattr(self, field))} of peers", "give a text")
        object.__setattr__(self, "min_peers", check_count(self.min_peers, "peers"))
        if not is_number(self.patience_s, 0.1, 3600):
            raise UserError(f"patience_s={shown(self.patience_s)} of peers", "give seconds from 0.1 to 3600")


def address(store: str) -> tuple[str, int]:
    """Return host and port of ``host:port``. Raises UserError for another text."""
    host, _, port = store.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise UserError(f"store {store!r} of peers", "write host:port, such as site-a:29400")
    return host.strip("[]"), int(port)


def check_local(local: LocalSteps, exchange: GradientExchange) -> None:
    """Raise UserError for local steps or an exchange that peers do not have."""
    whole = "leave it out: peers exchange the whole network, and wait for it"
    if local.fragments > 1:
        raise UserError(f"{local.fragments} fragments with peers", whole)
    if local.sync_delay:
        raise UserError(f"sync_delay {local.sync_delay} with peers", whole)
    if local.worker_devices > 1:
        raise UserError(f"worker_devices {local.worker_devices} with peers", "leave it out: all ranks of a site are one worker")
    local.check_peers(exchange)
