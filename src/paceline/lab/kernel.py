"""All calls to the kernel: commands of iproute2 and util-linux, additional system calls, and processes of a namespace."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.lab.topology import NETNS, Command

MARK = "PACELINE_LAB"
"""Variable of every process that a lab started, by ``Lab.run`` or its Slurm. ``down`` ends only processes that have it."""
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
COMMAND_TIMEOUT_S = 30.0
_PATH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/bin", "/bin"))
_PROBES = {
    "bridge": "ip link add name pl0 type bridge",
    "veth": "ip link add name pl1 type veth peer name pl2",
    "tbf": "tc qdisc add dev lo root tbf rate 1gbit burst 128k limit 1m",
    "netem": "tc qdisc replace dev lo root netem delay 1ms",
    "tap": "ip tuntap add dev pl3 mode tap",
}


class CommandFailed(RuntimeError):
    """Error for a system command with an exit code other than 0; the message has the command and its last output."""


def system(command: Sequence[str]) -> str:
    """Run one command and return its stdout. Raises CommandFailed."""
    path = os.pathsep.join((os.environ.get("PATH", ""), _PATH))
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(command)}: {error}") from error
    if finished.returncode != 0:
        raise CommandFailed(
            f"{' '.join(command)}: {' '.join((finished.stderr or finished.stdout).split()) or finished.returncode}"
        )
    return finished.stdout


def system_json(command: Sequence[str]) -> list[dict[str, Any]]:
    """Return the list that a command with ``-j`` prints. Raises CommandFailed."""
    try:
        return [item for item in json.loads(system(command) or "[]") if isinstance(item, dict)]
    except ValueError as error:
        raise CommandFailed(f"{' '.join(command)}: {error}") from error


def missing() -> list[str]:
    """List what this machine or user lacks for namespaces with shaped links; empty if nothing is missing.

    The kernel's parts are tried in a namespace without a name, which is deleted before this returns.
    """
    if sys.platform != "linux":
        return ["Linux"]
    needs = [f"root ({' and '.join(capabilities)})"] if (capabilities := lost_capabilities()) else []
    needs += [f"{tool} ({package})" for tool, package in TOOLS.items() if not which(tool)]
    if not needs:
        needs = [f"{part} in the kernel" for part in lacking_parts("bridge", "veth", "tbf")]
    return needs


def has_netem() -> bool:
    """Return whether the kernel can delay packets. False also if it may not be tried."""
    return not missing() and not lacking_parts("netem")


def lost_capabilities() -> list[str]:
    """Return the capabilities that a lab with links needs and this process lacks."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
    return [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]


def lacking_parts(*parts: str) -> list[str]:
    """List missing parts of the kernel, found by trying them in an unnamed namespace."""
    script = "; ".join(f"{_PROBES[part]} >/dev/null 2>&1 || echo {part}" for part in parts)
    try:
        return system(("unshare", "--net", "sh", "-c", script)).split()
    except CommandFailed:
        return ["network namespaces"]


def which(tool: str) -> str | None:
    """Return the path of a program, also from root's PATH; None if it is missing."""
    return shutil.which(tool) or shutil.which(tool, path=_PATH)


def boot_id() -> str:
    """Return the identity of the running kernel. No namespace survives a restart of it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def add_namespace(name: str) -> int:
    """Create a named namespace. Returns its inode, which identifies it. Raises CommandFailed."""
    system(("ip", "netns", "add", name))
    return (Path(NETNS) / name).stat().st_ino


def exists(name: str) -> bool:
    """Return whether a namespace of that name exists."""
    return (Path(NETNS) / name).exists()


def is_same(name: str, inode: int | None) -> bool:
    """Return whether the name still refers to the namespace with that inode.

    True also for inode None (an interrupted creation) and for a name that is no longer mounted (a restarted container).
    """
    try:
        entry = (Path(NETNS) / name).stat()
    except OSError:
        return False
    mounted = entry.st_dev == Path("/proc/self/ns/net").stat().st_dev
    return not mounted or inode is None or entry.st_ino == inode


def is_alive(name: str, inode: int | None) -> bool:
    """Return whether the namespace created under the name still exists and can be entered."""
    try:
        entry = (Path(NETNS) / name).stat()
        return inode is not None and entry.st_ino == inode and entry.st_dev == Path("/proc/self/ns/net").stat().st_dev
    except OSError:
        return False


def delete_namespace(name: str) -> None:
    """Delete a named namespace with all its interfaces. Raises CommandFailed."""
    system(("ip", "netns", "del", name))


def end_processes(namespace: str, lab: str, at_once: bool = False) -> tuple[list[int], list[int]]:
    """End the processes that ``lab`` started in the namespace. Returns the pids ended, and the pids of other processes, which
    keep running."""
    try:
        pids = [int(word) for word in system(("ip", "netns", "pids", namespace)).split()]
    except CommandFailed:
        return [], []
    ours = end(pids, lab, at_once, of_namespace=True)
    return ours, [pid for pid in pids if pid not in ours and Path(f"/proc/{pid}").exists()]


def end(pids: Sequence[int], lab: str, at_once: bool = False, grace: float = 3.0, of_namespace: bool = False) -> list[int]:
    """End the processes that ``lab`` started, by SIGTERM and then SIGKILL, or by SIGKILL ``at_once``. Returns their pids.

    ``of_namespace``: all are in one of the lab's namespaces. Slurm's step daemons count too, but overwrite their mark.
    """
    ours: dict[int, int] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)  # from here on the number cannot come to mean another process
            if has_mark(pid, lab) or (of_namespace and _is_step_daemon(pid)):
                ours[pid] = handle
            else:
                os.close(handle)
    try:
        for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            for handle in ours.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            _wait_for_end(ours.values(), grace)
    finally:
        for handle in ours.values():
            os.close(handle)
    return list(ours)


def _wait_for_end(handles: Iterable[int], seconds: float) -> None:
    """Wait until the processes have ended and released files and interfaces, or a timeout."""
    poll, running, until = select.poll(), set(handles), time.monotonic() + seconds
    for handle in running:
        poll.register(handle, select.POLLIN)
    while running and (left := until - time.monotonic()) > 0:
        for handle, _ in poll.poll(1000 * left):
            poll.unregister(handle)
            running.discard(handle)


def has_mark(pid: int, lab: str) -> bool:
    """Return whether the lab started the process and it still runs. A zombie has no environment any more."""
    try:
        return f"{MARK}={lab}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal such as SIGSTOP."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _is_step_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("slurmstepd")
    except OSError:
        return False


def enter(namespace: str) -> Command:
    """Return the command prefix that runs a command in a namespace.

    ``ip netns exec`` is not used, because it mounts another /sys, where a job does not find its GPUs.
    """
    return (which("nsenter") or "nsenter", f"--net={NETNS}/{namespace}", "--")


def port_in_use(namespace: str) -> set[int]:
    """Return the TCP ports in use in the namespace. Raises CommandFailed."""
    listing = system((*enter(namespace), "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true"))
    rows = [line.split() for line in listing.splitlines()]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[0].endswith(":")}
