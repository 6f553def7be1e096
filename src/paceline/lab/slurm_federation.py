"""Several Slurm clusters on the hosts of a lab as a federation: one controller per cluster, one slurmdbd, one MariaDB.

Debian's slurm-wlm, slurmdbd, munge and mariadb-server. Everything is in one directory and runs in the lab's namespaces with
its mark: ``lab.down`` ends it. No service of the machine is started or touched.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.lab import kernel, slurm
from paceline.lab.kernel import MARK, CommandFailed
from paceline.lab.topology import NETNS, Command, Topology

TOOLS = {**slurm.TOOLS, "sacct": "slurm-wlm", "sacctmgr": "slurm-wlm", "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
DATABASE_PORT, ACCOUNTING_PORT = 3307, 6819
READY_S = 60.0


@dataclass(frozen=True)
class SlurmCluster:
    """One cluster of a federation.

    Attributes:
        hosts: numbers of hosts of the lab; the controller is on the first. ``slots``: CPUs of each host.
        lines: further lines of its slurm.conf, such as partitions.
    """

    name: str
    hosts: tuple[int, ...]
    slots: int
    lines: str


def missing() -> list[str]:
    """Return the missing programs, each with its package."""
    return [f"{tool} ({package})" for tool, package in TOOLS.items() if not kernel.which(tool)]


class SlurmFederation:
    """The clusters of a running federation.

    Args:
        topology: topology of a lab that is up, without Slurm.
        directory: new, with a path short enough for a socket.

    Raises:
        UserError: programs are missing, or a cluster has no host.
    """

    def __init__(self, topology: Topology, directory: Path, clusters: Sequence[SlurmCluster]) -> None:
        if needs := missing():
            packages = " ".join(sorted({need.rpartition("(")[2].rstrip(")") for need in needs}))
            raise UserError(f"a Slurm federation needs {', '.join(needs)}", f"apt-get install {packages}")
        if not clusters or any(not cluster.hosts for cluster in clusters):
            raise UserError("a cluster without hosts", "give each cluster at least one host of the lab")
        self.topology, self.directory, self.clusters = topology, directory, tuple(clusters)
        self._database: subprocess.Popen[bytes] | None = None

    def start(self, account: Callable[[SlurmFederation], None]) -> None:
        """Start the database, the accounting, then ``account`` (which adds clusters and accounts), then all clusters.

        Raises:
            CommandFailed: something did not come up, with the last line of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        words = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        words["seed-file"] = "munged.seed"
        options = (f"--{word}={self.directory / name}" for word, name in words.items())
        slurm.daemon(self.topology, self.topology.switch, ("munged", "--force", *options))
        self._start_database()
        self._start_accounting()
        account(self)
        for cluster in self.clusters:
            self._start_cluster(cluster)
        for cluster in self.clusters:
            self._await_nodes(cluster)
        for cluster in self.clusters:
            self._await_siblings(cluster)

    def run(self, cluster: str, *words: str) -> str:
        """Run a Slurm command on a cluster and return its output. Raises CommandFailed."""
        return kernel.system((*self.client(cluster), *words))

    def client(self, cluster: str) -> Command:
        """Return the command prefix for sbatch, sacct and sacctmgr, which run on the host of the cluster's controller."""
        chosen = next(each for each in self.clusters if each.name == cluster)
        namespace = self.topology.namespace(chosen.hosts[0])
        return (*kernel.enter(namespace), "env", f"SLURM_CONF={self._conf(chosen)}")

    def stop(self) -> None:
        """Stop the database in order; the lab ends the rest with its namespaces."""
        if self._database is not None and self._database.poll() is None:
            self._database.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._database.wait(20)
            if self._database.poll() is None:
                self._database.kill()
                self._database.wait(20)

    def _start_database(self) -> None:
        data, host = self.directory / "database", self.topology.addresses[0]
        data.mkdir()
        install = kernel.which("mariadb-install-db") or "mariadb-install-db"
        options = (
            "--no-defaults",
            f"--datadir={data}",
            "--user=root",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        kernel.system((install, *options))
        command = (
            "nsenter",
            f"--net={NETNS}/{self.topology.namespace(0)}",
            "--",
            "env",
            f"{MARK}={self.topology.name}",
            kernel.which("mariadbd") or "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            f"--socket={self.directory}/db.sock",
            f"--port={DATABASE_PORT}",
            f"--bind-address={host}",
            f"--pid-file={self.directory}/db.pid",
            "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900",
        )
        log = (self.directory / "db.log").open("wb")
        self._database = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()
        password = secrets.token_hex(12)
        (self.directory / "password").touch(0o600)
        (self.directory / "password").write_text(password)
        grants = f"CREATE USER 'slurm'@'%' IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO 'slurm'@'%';"
        client = ("mariadb", "--no-defaults", f"--socket={self.directory}/db.sock", "-uroot", "-e", grants)
        self._await(lambda: kernel.system(client) == "", "db.log")

    def _start_accounting(self) -> None:
        conf = self.directory / "slurmdbd.conf"
        lines = (
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.directory}/munge.socket",
            "DbdHost=h0",
            f"DbdAddr={self.topology.addresses[0]}",
            f"DbdPort={ACCOUNTING_PORT}",
            "SlurmUser=root",
            f"LogFile={self.directory}/slurmdbd.log",
            f"PidFile={self.directory}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            f"StorageHost={self.topology.addresses[0]}",
            f"StoragePort={DATABASE_PORT}",
            "StorageUser=slurm",
            f"StoragePass={(self.directory / 'password').read_text()}",
            "StorageLoc=accounting",
        )
        conf.touch(0o600)
        conf.write_text("".join(f"{line}\n" for line in lines))
        for cluster in self.clusters:
            self._write(cluster)
        beside = self.directory / "slurm.conf"  # slurmdbd looks for its file in the same directory
        beside.write_text("ClusterName=accounting\nSlurmctldHost=h0\n")
        words = ("env", f"SLURM_CONF={beside}", kernel.which("slurmdbd") or "slurmdbd")
        slurm.daemon(self.topology, self.topology.namespace(0), words, hostname="h0")
        self._await(lambda: bool(self.run(self.clusters[0].name, "sacctmgr", "-n", "-P", "list", "tres")), "slurmdbd.log")

    def _conf(self, cluster: SlurmCluster) -> Path:
        return self.directory / cluster.name / "slurm.conf"

    def _write(self, cluster: SlurmCluster) -> None:
        place, addresses = self.directory / cluster.name, self.topology.addresses
        (place / "state").mkdir(parents=True)
        lines = (
            f"ClusterName={cluster.name}",
            f"SlurmctldHost=h{cluster.hosts[0]}({addresses[cluster.hosts[0]]})",
            "SlurmUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.directory}/munge.socket",
            f"StateSaveLocation={place}/state",
            f"SlurmdSpoolDir={place}/%n",
            f"SlurmctldPidFile={place}/slurmctld.pid",
            f"SlurmdPidFile={place}/%n.pid",
            f"SlurmctldLogFile={place}/slurmctld.log",
            f"SlurmdLogFile={place}/%n.log",
            f"AccountingStorageHost={addresses[0]}",
            f"AccountingStoragePort={ACCOUNTING_PORT}",
            f"AccountingStoragePass={self.directory}/munge.socket",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0",
            "ReturnToService=2",
            *(f"NodeName=h{host} NodeAddr={addresses[host]} CPUs={cluster.slots} State=UNKNOWN" for host in cluster.hosts),
        )
        self._conf(cluster).write_text("".join(f"{line}\n" for line in lines) + cluster.lines)
        if slurm.version() >= slurm.NO_CGROUPS:
            (place / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _start_cluster(self, cluster: SlurmCluster) -> None:
        conf = str(self._conf(cluster))
        first = cluster.hosts[0]
        slurm.daemon(self.topology, self.topology.namespace(first), ("slurmctld", "-f", conf), hostname=f"h{first}")
        for host in cluster.hosts:
            words = ("slurmd", "-f", conf, "-N", f"h{host}")
            slurm.daemon(self.topology, self.topology.namespace(host), words, hostname=f"h{host}")

    def _await_nodes(self, cluster: SlurmCluster) -> None:
        def idle() -> bool:
            states = self.run(cluster.name, "sinfo", "--local", "--noheader", "-N", "-o", "%N|%T").split()
            return len(set(states)) == len(cluster.hosts) and all(state.endswith("|idle") for state in states)

        self._await(idle, f"{cluster.name}/slurmctld.log")

    def _await_siblings(self, cluster: SlurmCluster) -> None:
        """Wait until the sibling clusters know each other, because Slurm starts no job earlier."""

        def synced() -> bool:
            siblings = self.run(cluster.name, "scontrol", "show", "federation").count("Synced:Yes")
            return siblings == len(self.clusters) - 1

        self._await(synced, f"{cluster.name}/slurmctld.log")

    def _await(self, ready: Callable[[], bool], log: str) -> None:
        until = time.monotonic() + READY_S
        last = ""
        while time.monotonic() < until:
            try:
                if ready():
                    return
            except CommandFailed as error:  # it has not opened its port yet
                last = str(error)
            time.sleep(0.3)
        path = self.directory / log
        words = path.read_text(errors="replace").splitlines()[-2:] if path.exists() else []
        raise CommandFailed(f"not ready after {READY_S:g} s: {last} {' '.join(words)}")
