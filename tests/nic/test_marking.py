"""Marks on sockets of this process, as the kernel has them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.nic.marking import mark_sockets, marking, tcp_sockets

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux, where /proc lists sockets")
TOS = 0x28
"""Li et al. 2018 (INCEPTIONN): the type of service of packets to compress."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def tos(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


def test_only_the_sockets_that_are_given(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    one, other = pair
    with (tmp_path / "file").open("w") as file, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        assert mark_sockets([one.fileno(), file.fileno(), udp.fileno(), 10**6]) == 1
        assert (tos(one), tos(other), udp.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)) == (TOS, 0, 0)
    assert mark_sockets([one.fileno()], 0) == 1 and tos(one) == 0


def test_ipv6_has_a_class_of_its_own() -> None:
    if not socket.has_ipv6:
        pytest.skip("needs a kernel with IPv6")
    try:
        one = socket.socket(socket.AF_INET6)
    except OSError:
        pytest.skip("needs a kernel with IPv6")
    with one:
        assert mark_sockets([one.fileno()]) == 1
        assert one.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == TOS


def test_a_block_marks_what_is_opened_in_it(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    assert {one.fileno(), other.fileno()} <= tcp_sockets()
    with marking() as marked:
        late = socket.create_server(("127.0.0.1", 0))
        assert marked == set() and tos(late) == 0
    with late:
        assert marked == {late.fileno()} and tos(late) == TOS and tos(one) == tos(other) == 0


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, paceline.nic.marking; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'amaranth')))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], timeout=250, env=environment).returncode == 0
