"""Names and addresses under which a server is asked for."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]{1,5})?")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """The name in a Host header, without its port and in small letters; empty where it is none."""
    named = _HOST.fullmatch(header)
    return named[1].strip("[]").casefold() if named else ""
