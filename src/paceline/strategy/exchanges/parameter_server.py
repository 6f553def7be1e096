"""Parameter servers among the workers, which add pushed gradients and return the sums."""

from __future__ import annotations

from typing import final

from paceline.strategy.exchanges.sharded import PushPull


@final
class ParameterServer(PushPull):
    """Exchange with parameter servers. Only servers own shards; they are spread evenly over the ranks and so over the nodes."""

    __slots__ = ()
    name, position = "parameter_server", 2
    has_servers = adds_on_host = adds_in_card = True

    def owners(self, workers: int, servers: int) -> int:
        """Return the number of servers."""
        del workers
        return servers


PARAMETER_SERVER = ParameterServer()
