"""Model configurations uploaded to the page: parsed as data, limited in size, kept in memory by content hash."""

from __future__ import annotations

import json
from collections import OrderedDict
from hashlib import sha256
from threading import Lock

from paceline.errors import UserError
from paceline.serve.selection import UPLOADED
from paceline.workload import Workload

MOST_BYTES = 256 * 1024
"""Most bytes of one configuration."""
MOST_KEPT = 32
"""Most stored configurations. The least recently used one is dropped."""


class Configurations:
    """Uploaded ``config.json`` files by the hash of their contents, so that an address is valid while the server runs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, object]] = OrderedDict()
        self._lock = Lock()

    def keep(self, body: bytes) -> str:
        """Store a configuration and return its name. Raises UserError if it is too large, not JSON, or no known model."""
        if len(body) > MOST_BYTES:
            raise UserError(f"a configuration of more than {MOST_BYTES // 1024} KiB", "give a model's config.json")
        try:
            config = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise UserError("the configuration is not JSON", "give a model's config.json") from error
        if not isinstance(config, dict):
            raise UserError("the configuration is not an object", "give a model's config.json")
        Workload.from_config(config)
        name = f"{UPLOADED}{sha256(body).hexdigest()[:16]}"
        with self._lock:
            self._kept[name] = config
            self._kept.move_to_end(name)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return name

    def workload(self, name: str, seq_len: int | None) -> Workload:
        """Return the model of a configuration. Raises UserError if it is not stored, or if the length is illegal."""
        with self._lock:
            if name not in self._kept:
                raise UserError("this server does not have that configuration", "give the config.json to the page again")
            self._kept.move_to_end(name)
            config = self._kept[name]
        return Workload.from_config(config, seq_len)
