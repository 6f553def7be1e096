"""Store of a run of peers, hosted apart from all peers so that each may leave: ``python -m paceline.training.attach.peers``."""

from __future__ import annotations

import sys
import threading

from paceline.errors import UserError
from paceline.training.attach.peers.peer_store import host_store

USAGE = """usage: python -m paceline.training.attach.peers HOST:PORT

Host the store in which the peers of a run meet, until this process is ended. HOST is an address of this machine, such as
0.0.0.0 for all of its networks. Each peer gives the address to paceline.attach_local: peers=paceline.Peers("site-a:29400")."""


def main(arguments: list[str]) -> int:
    """Host a store until the process is ended. ``arguments``: the address, ``host:port``."""
    if {"-h", "--help"} & {*arguments}:
        print(USAGE)
        return 0
    try:
        if len(arguments) != 1:
            raise UserError(
                "the address of the store is missing", "write python -m paceline.training.attach.peers 0.0.0.0:29400"
            )
        store = host_store(arguments[0])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"the store of peers is ready on port {store.port}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
