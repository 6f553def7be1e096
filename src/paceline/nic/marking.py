"""Marks on sockets that tell the network card to compress their packets (Li et al., MICRO 2018, section VI-B).

The mark is the ToS 0x28 in the IP header, set with setsockopt as the paper's MPI does. Only fp32 gradients may go through a
marked socket: the card's codec loses values below its bound.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import UserError

TOS = 0x28
"""DSCP 10 (AF11) with both ECN bits zero."""
_DESCRIPTORS = Path("/proc/self/fd")


def mark_sockets(descriptors: Iterable[int], tos: int = TOS) -> int:
    """Set the ToS of all later packets of these TCP sockets; 0 removes the mark. The kernel sets the ECN bits itself.

    Args:
        descriptors: descriptors of this process. Descriptors that are closed or no TCP sockets are skipped.

    Returns:
        The number of marked sockets.
    """
    marked = 0
    for descriptor in descriptors:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
            if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if one.family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
            with suppress(OSError):  # for the IPv4 addresses of an IPv6 socket
                one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            marked += 1
    return marked


def tcp_sockets() -> frozenset[int]:
    """Return the descriptors of this process's TCP sockets. Raises UserError if the system does not list them."""
    if not _DESCRIPTORS.is_dir():
        raise UserError("the sockets of a process are listed in /proc, which is not here", "mark sockets on Linux")
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):
            if not os.readlink(entry).startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    found.add(int(entry.name))
    return frozenset(found)


@contextmanager
def marking() -> Iterator[set[int]]:
    """Mark the TCP sockets that this process opens in the block, such as those of ``dist.new_group``.

    The connections must be idle between messages at the end of the block, so put a barrier there: the card takes the first
        marked byte of a connection for the beginning of a message. The sockets are marked when the block is left.

    Yields:
        A set that holds the marked descriptors afterwards.
    """
    before, marked = tcp_sockets(), set[int]()
    yield marked
    opened = tcp_sockets() - before
    mark_sockets(opened)
    marked.update(opened)
