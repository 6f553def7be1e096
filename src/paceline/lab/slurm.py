"""Real Slurm on the hosts of a lab: Debian's slurm-wlm and munge, one slurmd per host, the controller on the switch.

Key, socket, configuration, logs and state are in one directory of the lab, and every process, jobs included, has the lab's
mark. No cgroup is made, and no service of the machine is used.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.lab import kernel
from paceline.lab.kernel import MARK, CommandFailed
from paceline.lab.topology import NETNS, Command, Topology

HEAD = "paceline-head"
TOOLS = {"munged": "munge", **dict.fromkeys(("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol"), "slurm-wlm")}
READY_S = 60.0
LOST_NODE_S = 10
"""After so many seconds without an answer Slurm counts a node as down. Slurm's own default is 300 s."""
KILL_WAIT_S = 5
REQUEUE_WAIT_S = 10
"""How long a requeued job waits at least: Slurm lets the credential of its last start run out (120 s by default)."""
_LONGEST_SOCKET = 107
NO_CGROUPS = (23, 2)
"""From this version on slurmd takes ``CgroupPlugin=disabled``; before, it needs none where no plugin asks for one."""


def missing() -> list[str]:
    """Return the missing programs for Slurm, each with its package."""
    return [f"{tool} ({package})" for tool, package in TOOLS.items() if not kernel.which(tool)]


def check(topology: Topology, directory: Path) -> None:
    """Raise UserError if Slurm is not installed or its socket's path is too long for the kernel."""
    if needs := missing():
        raise UserError(f"Slurm on a lab needs {', '.join(needs)}", "apt-get install slurm-wlm munge, or leave out --slurm")
    if len(os.fsencode(directory / "munge.socket")) > _LONGEST_SOCKET:
        raise UserError(f"{directory} is too long a path for a socket", "set PACELINE_RUNTIME_DIR to a shorter one")


def client(topology: Topology, directory: Path) -> Command:
    """Return the command prefix for sbatch, squeue and scontrol, which run on the controller's host."""
    return (*kernel.enter(topology.switch), "env", f"SLURM_CONF={directory / 'slurm.conf'}")


def files(topology: Topology, directory: Path, release: tuple[int, int] = (22, 5)) -> Mapping[str, str]:
    """Return the text files of the directory by name. ``release`` is the year and month of Slurm's release."""
    nodes = [f"h{host}" for host in range(topology.hosts)]
    lines = (
        f"ClusterName={topology.name}",
        f"SlurmctldHost={HEAD}({topology.head})",
        "SlurmUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={directory}/munge.socket,cred_expire={REQUEUE_WAIT_S}",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/%n.pid",
        f"SlurmctldLogFile={directory}/slurmctld.log",
        f"SlurmdLogFile={directory}/%n.log",
        f"TaskProlog={directory}/prolog",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0",
        "ReturnToService=2",
        f"SlurmdTimeout={LOST_NODE_S}",
        f"KillWait={KILL_WAIT_S}",
        "JobRequeue=1",
        *(
            f"NodeName={node} NodeAddr={address} CPUs={topology.slots} State=UNKNOWN"
            for node, address in zip(nodes, topology.addresses, strict=True)
        ),
        f"PartitionName=lab Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP",
    )
    texts = {
        "slurm.conf": "".join(f"{line}\n" for line in lines),
        # a task's environment is its job's, not slurmd's: so the mark that ``down`` looks for is added here
        "prolog": f"#!/bin/sh\necho export {MARK}={topology.name}\n",
    }
    return {**texts, "cgroup.conf": "CgroupPlugin=disabled\n"} if release >= NO_CGROUPS else texts


def start(topology: Topology, directory: Path, say: Callable[[str], None]) -> None:
    """Write the files, start the daemons and wait until every node is idle. Raises CommandFailed."""
    say(f"Slurm on {topology.hosts} hosts, {topology.slots} CPUs each")
    try:
        (directory / "state").mkdir(parents=True)
        for name, text in files(topology, directory, version()).items():
            (directory / name).write_text(text)
        (directory / "prolog").chmod(0o755)
        key = directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
    except OSError as error:
        raise CommandFailed(f"{directory}: {error.strerror or error}") from error
    words = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
    words["seed-file"] = "munged.seed"
    daemon(topology, topology.switch, ("munged", "--force", *(f"--{word}={directory / name}" for word, name in words.items())))
    start_controller(topology, directory)
    for host in range(topology.hosts):
        start_host(topology, directory, host)
    _await_nodes(topology, directory)


def start_controller(topology: Topology, directory: Path) -> None:
    """Start slurmctld, which continues from its saved state if there is one. Raises CommandFailed."""
    daemon(topology, topology.switch, ("slurmctld", "-f", str(directory / "slurm.conf")), hostname=HEAD)


def start_host(topology: Topology, directory: Path, host: int) -> None:
    """Start the slurmd of one host. Raises CommandFailed."""
    words = ("slurmd", "-f", str(directory / "slurm.conf"), "-N", f"h{host}")
    daemon(topology, topology.namespace(host), words, hostname=f"h{host}")


def stop_controller(topology: Topology, directory: Path) -> None:
    """Stop slurmctld, which saves its state; jobs keep running. Raises CommandFailed if it does not run."""
    pid = _pid(directory / "slurmctld.pid")
    if pid is None or not kernel.has_mark(pid, topology.name):
        raise CommandFailed("slurmctld does not run")
    kernel.end((pid,), topology.name)


def node_states(topology: Topology, directory: Path) -> Mapping[str, str]:
    """Return the state of every node in Slurm by name: ``idle``, ``mixed``, ``allocated``, ``down`` ... Raises
    CommandFailed."""
    lines = kernel.system((*client(topology, directory), "sinfo", "--noheader", "-N", "-o", "%N|%T")).splitlines()
    return dict(line.strip().split("|", 1) for line in lines if "|" in line)


def lacking(topology: Topology, directory: Path) -> list[str]:
    """Return the daemons that have stopped running."""
    daemons = {"munged": "munged.pid", "slurmctld": "slurmctld.pid"}
    daemons |= {f"slurmd of host {host}": f"h{host}.pid" for host in range(topology.hosts)}
    return [
        name
        for name, file in daemons.items()
        if (pid := _pid(directory / file)) is None or not kernel.has_mark(pid, topology.name)
    ]


def daemon(topology: Topology, namespace: str, words: Sequence[str], hostname: str = "") -> None:
    """Start a daemon in a namespace, with the lab's mark and a separate host name. Raises CommandFailed.

    ``ip netns exec`` is not used: it mounts another /sys, without cgroups, and slurmd then refuses to start.
    """
    own_name = ("unshare", "--uts", "sh", "-c", f'hostname {hostname}; exec "$@"', "sh") if hostname else ()
    program = kernel.which(words[0]) or words[0]
    enter = ("nsenter", f"--net={NETNS}/{namespace}", "--", "env", f"{MARK}={topology.name}")
    kernel.system((*enter, *own_name, program, *words[1:]))


def _await_nodes(topology: Topology, directory: Path) -> None:
    until = time.monotonic() + READY_S
    states: Mapping[str, str] = {}
    while time.monotonic() < until:
        with suppress(CommandFailed):  # the controller has not opened its port yet
            states = node_states(topology, directory)
            if len(states) == topology.hosts and set(states.values()) == {"idle"}:
                return
        time.sleep(0.2)
    log = (directory / "slurmctld.log").read_text().splitlines()[-1:] if (directory / "slurmctld.log").exists() else []
    raise CommandFailed(f"Slurm's nodes are {dict(states) or 'unknown'} after {READY_S:g} s: {' '.join(log)}")


def _pid(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def version() -> tuple[int, int]:
    """Return year and month of the installed Slurm's release."""
    numbers = re.search(r"(\d+)\.(\d+)", kernel.system(("slurmd", "-V")))
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
