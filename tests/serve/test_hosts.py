"""Addresses of this machine, and the name in a Host header."""

from __future__ import annotations

from paceline.serve.hosts import host_of, is_loopback


def test_addresses_of_this_machine_alone() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "lab")] == [False] * 4
    assert [host_of(text) for text in ("a:1", "[::1]:2", "A", "[", ":")] == ["a", "::1", "a", "", ""]
