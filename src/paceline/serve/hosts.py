"""Host names and addresses of a server."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]{1,5})?")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """Return the name in a Host header, in lower case without its port; empty for an illegal header."""
    named = _HOST.fullmatch(header)
    return named[1].strip("[]").casefold() if named else ""
