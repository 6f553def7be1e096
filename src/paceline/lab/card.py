"""Network cards of a lab, one process per host between the host's interface and its cable.

A card reads the packets that the host sends, compresses the fp32 values in marked gloo flows, and restores incoming ones. The
source is in csrc/nic/.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paceline.errors import UserError
from paceline.lab import kernel
from paceline.lab.card_spec import parse_card
from paceline.lab.kernel import MARK, CommandFailed
from paceline.lab.topology import INTERFACE, WIRE, Topology, card_queue

READY_S = 20.0
STOPPED_S = 0.5
"""A signal that stops a card for less than this, as a debugger's does, is nothing."""
MAGIC = b"PNSTAT01"
_LAYOUT = struct.Struct("=8s19Q")
"""csrc/nic/statistics.h: the magic, the process, whether it is ready, then what is sent and what is received."""


@dataclass(frozen=True)
class CardCounters:
    """Counters of one card since its start.

    Sent, of marked TCP segments with data: ``segments`` of them, ``compressed`` of these, ``bytes_before`` of payload as the
    host sent them and ``bytes_after`` as the wire carried them. ``verbatim``: packets of the host that look like a card's.
    ``retransmitted`` and ``gaps``: packets before or after the expected one. ``flows`` were followed, ``left_alone`` of
    them given up because something in them is no message of gloo's.

    Received: ``restored`` segments with ``restored_bytes`` of payload, which were ``received_bytes`` on the wire, and
    ``damaged`` ones, which TCP sends again. ``dropped``, of both: frames that found no room, or no cable.
    """

    host: int
    process: int
    sent_frames: int
    segments: int
    compressed: int
    bytes_before: int
    bytes_after: int
    verbatim: int
    retransmitted: int
    gaps: int
    flows: int
    left_alone: int
    received_frames: int
    restored: int
    received_bytes: int
    restored_bytes: int
    damaged: int
    dropped: int


def program() -> Path:
    """Return the path of the card's executable, which is next to the package's other compiled parts."""
    native = find_spec("paceline._native")
    return Path((native and native.origin) or __file__).with_name("_nic_card")


def check(topology: Topology) -> None:
    """Raise UserError if the card's program or one of its requirements is missing."""
    if not program().is_file():
        raise UserError("this installation has no network card", "make native, or install Paceline again, on Linux")
    if lacking := kernel.lacking_parts("tap"):
        raise UserError(f"a card needs {lacking[0]} interfaces in the kernel", "modprobe tun, or leave out --nic")
    if topology.nic_ports and not kernel.which("nft"):
        raise UserError("nft is missing, which marks by port", "apt-get install nftables, or leave out --nic-ports")


def start(topology: Topology, directory: Path, say: Callable[[str], None]) -> None:
    """Start the card of every host and wait until all cards work. Raises CommandFailed."""
    directory.mkdir(exist_ok=True)
    for host in range(topology.hosts):
        say(f"card {host + 1} of {topology.hosts}")
        start_host(topology, directory, host)


def start_host(topology: Topology, directory: Path, host: int) -> None:
    """Start the card of one host and wait until the card works. Raises CommandFailed."""
    statistics, log = _statistics_file(directory, host), directory / f"h{host}.log"
    statistics.unlink(missing_ok=True)
    spec = parse_card(topology.nic)
    words = [str(program()), "--tap", INTERFACE, "--wire", WIRE, "--codec", spec.codec, "--k", str(spec.k)]
    words += ["--mtu", str(topology.mtu), "--send-buffer", str(card_queue(topology)), "--statistics", str(statistics)]
    words += ["--rate", repr(spec.rate)] if spec.rate else []
    words += ["--engine", spec.engine] if spec.engine else []
    mark = ("env", f"{MARK}={topology.name}", f"CARD_LOG={log}")
    detached = 'exec setsid -f "$@" </dev/null >"$CARD_LOG" 2>&1'
    kernel.system((*kernel.enter(topology.namespace(host)), *mark, "sh", "-c", detached, "sh", *words))
    until = time.monotonic() + READY_S
    while not is_alive(topology, directory, host):
        said = log.read_text(errors="replace").strip() if log.is_file() else ""
        if said or time.monotonic() > until:
            raise CommandFailed(f"the card of host {host}: {said.splitlines()[-1] if said else 'it does not start'}")
        time.sleep(0.02)


def stop_host(topology: Topology, directory: Path, host: int) -> None:
    """Stop the card of one host if it runs."""
    if (counters := read(directory, host)) is not None:
        kernel.end([counters.process], topology.name, at_once=True)


def is_alive(topology: Topology, directory: Path, host: int) -> bool:
    """Return whether the host's card works."""
    counters = read(directory, host)
    return counters is not None and kernel.has_mark(counters.process, topology.name)


def fault(topology: Topology, directory: Path, host: int) -> str:
    """Return the fault of the host's card: ``has died``, or ``is stopped`` for more than a moment; empty if it works."""
    until = time.monotonic() + STOPPED_S
    while is_alive(topology, directory, host):
        counters = read(directory, host)
        if counters is None or not kernel.is_stopped(counters.process):
            return ""
        if time.monotonic() > until:
            return "is stopped"
        time.sleep(0.05)
    return "has died"


def read(directory: Path, host: int) -> CardCounters | None:
    """Return the counters of one card, even a dead one; None if it never worked."""
    with suppress(OSError, struct.error):
        data = _statistics_file(directory, host).read_bytes()
        magic, process, ready, *counts = _LAYOUT.unpack(data)
        if magic == MAGIC and ready:
            sent, received = counts[:11], counts[11:]
            return CardCounters(*(host, process, *sent[:10], *received[:5], sent[10] + received[5]))
    return None


def _statistics_file(directory: Path, host: int) -> Path:
    return directory / f"h{host}.statistics"
