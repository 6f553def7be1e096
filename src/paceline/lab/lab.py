"""A lab as an object that is made, runs commands, loses cables and is removed."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from paceline.errors import UserError, unknown
from paceline.lab import card, journal, kernel, slurm
from paceline.lab.adding_switch import adding_switch
from paceline.lab.card import CardCounters
from paceline.lab.card_spec import VARIABLE
from paceline.lab.journal import LabState
from paceline.lab.kernel import CommandFailed
from paceline.lab.namespaces import make, remove
from paceline.lab.processes import HostLost, HostResult, execute
from paceline.lab.ranks import Host
from paceline.lab.status import Counters, LabStatus, read_cards, read_counters, read_status
from paceline.lab.topology import INTERFACE, MTU, Topology, check_name, topology

PORTS = range(20_000, 30_000)
"""Ports for the rendezvous, below those that the kernel gives out by itself."""
UP = "paceline lab up --hosts 4 --link 1Gb/s"
Say = Callable[[str], None]


class Loopback:
    """Replacement for a lab on 127.0.0.1: all ranks on this machine, unshaped, without privileges. It leaves no trace."""

    def __init__(self, hosts: int, name: str = "loopback", switch_adds: bool = False) -> None:
        self.topology = topology(hosts, None, name, adds=switch_adds)

    def _hosts(self) -> list[Host]:
        return [Host(number, address, "lo") for number, address in enumerate(self.topology.addresses)]

    def _port(self) -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            return port

    def _environment(self) -> dict[str, str]:
        return {}

    def _lost_host(self) -> HostLost | None:
        """Return a host that can no longer reach the others; called repeatedly while a command runs."""
        return None

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        per_host: int = 1,
        stream: bool = False,
    ) -> list[HostResult]:
        """Run a command on every host at once and wait for all.

        Args:
            command: list of words; ``{rank}``, ``{hosts}`` and ``{address}`` are replaced.
            env: additions to torchrun's environment and this process's own.
            timeout: seconds, after which all are ended.
            per_host: ranks on each host; ``LOCAL_WORLD_SIZE`` is set to it.
            stream: True to print each line immediately too, after ``host 2 |``.

        Returns:
            A result per rank, in the order of ranks.

        Raises:
            HostFailed: one failed, the first of them is named, and the others were ended; or the time was up.
            UserError: nothing could be started.
        """
        hosts, port = self._hosts(), self._port()
        with self._switch({**self._environment(), **(env or {})}) as (environment, switch_works):

            def lost() -> HostLost | None:
                died = HostLost(0, "the switch that adds has died; run the job again")
                return self._lost_host() if switch_works() else died

            return execute(
                hosts,
                command,
                lab=self.topology.name,
                port=port,
                env=environment,
                timeout=timeout,
                per_host=per_host,
                stream=stream,
                lost_host=lost,
            )

    def _switch(self, env: Mapping[str, str]) -> AbstractContextManager[tuple[Mapping[str, str], Callable[[], bool]]]:
        """Run the switch that adds, if the lab has one, during the block."""
        if not self.topology.adds:
            return nullcontext((env, lambda: True))
        return adding_switch(self._switch_entry, self.topology.head, Loopback._port(self), self.topology.name, env)

    @property
    def _switch_entry(self) -> tuple[str, ...]:
        return ()


class Lab(Loopback):
    """A running lab, from :func:`up` or :func:`find`.

    As a context manager, it is removed at the end if this ``up`` made it (``fresh``), and kept if it existed before.
    """

    def __init__(self, lab_state: LabState, fresh: bool = False) -> None:
        self.topology, self.state, self.fresh = lab_state.topology, lab_state, fresh

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.fresh:
            self.down()

    @property
    def is_loopback(self) -> bool:
        """True if the lab has no separate network."""
        return self.topology.link is None

    def status(self) -> LabStatus:
        """Return the current state of all parts of the lab."""
        return read_status(self.state)

    def counters(self) -> list[Counters]:
        """Return bytes and packets of every host's interface, read inside its namespace. Raises UserError."""
        self._needs_network("counters")
        try:
            return [read_counters(self.state, host) for host in range(self.topology.hosts)]
        except CommandFailed as error:
            raise self._incomplete(str(error)) from error

    def cut(self, host: int) -> None:
        """Pull the host's cable: its link goes down, its processes keep running. Raises UserError."""
        self._set_link(host, "down")

    def mend(self, host: int) -> None:
        """Plug the host's cable in again. Raises UserError."""
        self._set_link(host, "up")

    def power_off(self, host: int) -> list[int]:
        """Power a host off: pull its cable and end its processes and card. Returns the pids. Raises UserError."""
        self.cut(host)  # first, so that no connection is closed in order
        if self.topology.nic:
            card.stop_host(self.topology, journal.card_directory(self.topology.name), host)
        return kernel.end_processes(self.topology.namespace(host), self.topology.name, at_once=True)[0]

    def power_on(self, host: int) -> None:
        """Power a host on, with its card and slurmd if the lab has them, and no other process. Raises UserError."""
        self.mend(host)
        if self.topology.nic:
            try:
                card.start_host(self.topology, journal.card_directory(self.topology.name), host)
            except CommandFailed as error:
                raise self._incomplete(str(error)) from error
        if self.topology.slots:
            try:
                slurm.start_host(self.topology, journal.slurm_directory(self.topology.name), host)
            except CommandFailed as error:
                raise self._incomplete(str(error)) from error

    def slurm(self) -> tuple[str, ...]:
        """Return the command prefix for sbatch, squeue and others on the lab's Slurm. Raises UserError without Slurm."""
        if not self.topology.slots:
            raise UserError(f"lab {self.topology.name!r} has no Slurm", f"paceline lab down, then {UP} --slurm")
        return slurm.client(self.topology, journal.slurm_directory(self.topology.name))

    def restart_slurm_controller(self) -> None:
        """Restart slurmctld. It continues from its saved state, and jobs keep running. Raises UserError."""
        self.slurm()
        directory = journal.slurm_directory(self.topology.name)
        try:
            slurm.stop_controller(self.topology, directory)
            slurm.start_controller(self.topology, directory)
        except CommandFailed as error:
            raise self._incomplete(str(error)) from error

    def down(self) -> list[str]:
        """Remove the lab, as the function :func:`down` does."""
        return down(self.topology.name)

    def _hosts(self) -> list[Host]:
        if self.is_loopback:
            return super()._hosts()
        lost_hosts = [
            f"host {n}"
            for n in range(self.topology.hosts)
            if not kernel.is_alive(name := self.topology.namespace(n), self.state.namespaces.get(name))
        ]
        if lost_hosts or self.state.phase != "up":
            raise self._incomplete(", ".join(lost_hosts) or "its making was cut short")
        if lost := self._lost_host():
            raise self._incomplete(f"the card of host {lost.host}")
        return [
            Host(number, address, INTERFACE, kernel.enter(self.topology.namespace(number)))
            for number, address in enumerate(self.topology.addresses)
        ]

    @property
    def _switch_entry(self) -> tuple[str, ...]:
        return () if self.is_loopback else kernel.enter(self.topology.switch)

    def cards(self) -> list[CardCounters | None]:
        """Return the counters of every host's network card; None for a card that does not work. Raises UserError if the lab has
        no cards."""
        if not self.topology.nic:
            raise UserError(f"lab {self.topology.name!r} has no network cards", f"lab down, then {UP} --nic inceptionn")
        return list(read_cards(self.topology))

    def _environment(self) -> dict[str, str]:
        return {VARIABLE: self.topology.nic} if self.topology.nic else {}

    def _lost_host(self) -> HostLost | None:
        if not self.topology.nic:
            return None
        directory = journal.card_directory(self.topology.name)
        for host, address in enumerate(self.topology.addresses):
            if wrong := card.fault(self.topology, directory, host):
                return HostLost(host, f"host {host} ({address}): its network card {wrong}; the same lab up replaces it")
        return None

    def _port(self) -> int:
        if self.is_loopback:
            return super()._port()
        try:
            taken = kernel.port_in_use(self.topology.namespace(0))
        except CommandFailed as error:
            raise UserError(f"cannot enter host 0: {error}", "run it as the user who made the lab, with sudo") from error
        return random.choice([port for port in PORTS if port not in taken])

    def _set_link(self, host: int, direction: str) -> None:
        self._needs_network("links")
        if not 0 <= host < self.topology.hosts:
            raise UserError(f"no host {host}", f"give one from 0 to {self.topology.hosts - 1}")
        try:
            kernel.system(("ip", "-n", self.topology.switch, "link", "set", f"p{host}", direction))
        except CommandFailed as error:
            raise self._incomplete(str(error)) from error

    def _needs_network(self, what: str) -> None:
        if self.is_loopback:
            raise UserError(f"{self.topology.name} is on loopback, which has no {what}", f"as root: {UP}")

    def _incomplete(self, what: str) -> UserError:
        return UserError(f"lab {self.topology.name!r} is incomplete: {what}", "the same paceline lab up replaces it")


def loopback(hosts: int, switch_adds: bool = False) -> Loopback:
    """Return a lab of ``hosts`` hosts that are all 127.0.0.1. Raises UserError for an illegal number."""
    return Loopback(hosts, switch_adds=switch_adds)


def up(
    hosts: int,
    link: str | float | None,
    name: str = "lab",
    latency: str | float | None = None,
    *,
    slurm_slots: int = 0,
    switch_adds: bool = False,
    nic: str = "",
    nic_ports: str = "",
    mtu: int = MTU,
    ipv6: bool = False,
    say: Say | None = None,
) -> Lab:
    """Make a lab, or find an equal one that is up. Remains of a crashed lab of that name are removed first.

    Args:
        hosts: from 1 to 250.
        link: link of every host, each way: text such as ``1Gb/s``, or bytes/s; None makes a lab on loopback.
        name: several labs may be up at once.
        latency: added each way: text such as ``100us``, or seconds. Needs netem in the kernel.
        slurm_slots: CPUs of each host that the lab's Slurm gives out; 0 for no Slurm.
        switch_adds: the switch adds the gradients of a job whose exchange is ``switch``.
        nic: a network card for each host, as text: ``inceptionn``, ``inceptionn,bound=2^-8:25.6Gb/s`` (docs/lab.md).
        nic_ports: TCP ports whose packets every host marks for its card: ``20000-30000``. Otherwise the sockets are marked
            by who opens them (:mod:`paceline.nic.marking`).
        mtu: bytes of the largest IP packet on the links.
        ipv6: give each host an IPv6 address too.
        say: receives a line about each phase.

    Raises:
        UserError: for illegal values, missing parts, or a lab of that name with other parameters.
    """
    wanted_topology = topology(
        hosts, link, name, latency, slurm_slots, adds=switch_adds, nic=nic, nic_ports=nic_ports, mtu=mtu, ipv6=ipv6
    )
    say = say or (lambda text: None)
    if wanted_topology.link is None and latency is not None:
        raise UserError("loopback has no latency to add to", "leave out `latency`, or make a lab with a link")
    if wanted_topology.link is not None:
        _check_privileges(wanted_topology)
    if wanted_topology.nic:
        card.check(wanted_topology)
    if wanted_topology.slots:
        slurm.check(wanted_topology, journal.slurm_directory(name))
    with journal.locked():
        lab_state = journal.load(name)
        if lab_state and lab_state.stale:
            lab_state.delete()
            lab_state = None
        if lab_state and lab_state.phase == "up" and (difference := lab_state.topology.difference(wanted_topology)):
            raise UserError(f"lab {name!r} is up with {difference}", f"paceline lab down --name {name}, then up again")
        if lab_state:
            status = read_status(lab_state)
            if status.complete:
                return Lab(lab_state)
            say(f"incomplete ({'; '.join(status.lacking)}); made again")
            for line in remove(lab_state):
                say(line)
        if taken := [entry for entry in wanted_topology.namespaces if kernel.exists(entry)]:
            raise UserError(
                f"namespace {taken[0]} is there already, and no file says that Paceline made it",
                f"choose another `name`, or ip netns del {taken[0]}",
            )
        return Lab(make(wanted_topology, say), fresh=True)


def find(name: str = "lab") -> Lab:
    """Return the lab of that name, complete or incomplete. Raises UserError if none exists."""
    lab_state = journal.load(name)
    if lab_state is None or lab_state.stale:
        others = labs()
        raise unknown("lab", name, others) if others else UserError(f"no lab {name!r} is up", UP)
    _check_reach(lab_state)
    return Lab(lab_state)


def labs() -> list[str]:
    """Return the names of all labs, complete or incomplete."""
    return [name for name in journal.names() if (lab_state := journal.load(name)) and not lab_state.stale]


def down(name: str = "lab") -> list[str]:
    """Remove a lab or the remains of a crashed one, if any.

    Ends the processes that ``run`` started in it. Other processes there keep running, without a network.

    Returns:
        Lines of text: processes ended or left, names left alone.

    Raises:
        UserError: a part cannot be removed. The lab's file is then kept, and another ``down`` continues.
    """
    check_name(name)
    if journal.load(name) is None:
        return []
    with journal.locked():
        lab_state = journal.load(name)
        if lab_state is None:
            return []
        if lab_state.stale:
            lab_state.delete()
            return ["the machine was restarted since; only the file was left"]
        _check_reach(lab_state)
        return remove(lab_state)


def _check_privileges(wanted: Topology) -> None:
    if needs := kernel.missing():
        loop = f"paceline lab up --hosts {wanted.hosts} --loopback"
        first = "run it with sudo" if needs[0].startswith("root") else "install or load it"
        raise UserError(f"a lab with links needs {', '.join(needs)}", f"{first}; without: {loop} (127.0.0.1, unshaped)")
    if wanted.latency is not None and not kernel.has_netem():
        raise UserError(
            "this kernel has no netem, which latency needs",
            "leave out `latency`, or load sch_netem (on Debian and Fedora in linux-modules-extra or kernel-modules-extra)",
        )


def _check_reach(lab_state: LabState) -> None:
    if lab_state.namespaces and (lost := kernel.lost_capabilities()):
        raise UserError(f"lab {lab_state.topology.name!r} has namespaces, which take {' and '.join(lost)}", "run it with sudo")
