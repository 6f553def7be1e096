"""One rank of a ``paceline train`` job under srun, with torchrun's variables set from Slurm's.

``srun python -m paceline.scheduling.executors.rank RECORD``, where RECORD is the job's ``NAME.json``.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.scheduling.executors.records import Records, words_of_training

FIRST_PORT, PORTS = 20_000, 10_000
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def torch_environment(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would set, from srun's and ``MASTER_ADDR``. The user's threads and ports are kept."""
    node = int(slurm["SLURM_NODEID"])
    job, step = int(slurm["SLURM_JOB_ID"]), int(slurm.get("SLURM_STEP_ID", "0"))
    again = int(slurm.get("SLURM_RESTART_COUNT", "0")) + step  # a port that an earlier start has left may not be free yet
    return {
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "LOCAL_WORLD_SIZE": str(tasks_per_node(slurm["SLURM_STEP_TASKS_PER_NODE"])[node]),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "MASTER_PORT": slurm.get("MASTER_PORT", str(FIRST_PORT + (7 * job + again) % PORTS)),
        "OMP_NUM_THREADS": slurm.get("OMP_NUM_THREADS", slurm.get("SLURM_CPUS_PER_TASK", "1")),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_CPP_LOG_LEVEL": slurm.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's ``2(x3),1`` to the list 2, 2, 2, 1."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def interface_to(address: str) -> str:
    """Return the network interface of this host towards ``address``; empty if unknown."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = array.array("B", struct.pack("256s", name.encode()[:15]))
                try:
                    fcntl.ioctl(probe, _GET_ADDRESS, request)
                except OSError:  # it has no address
                    continue
                if socket.inet_ntoa(request[20:24].tobytes()) == own:
                    return name
    except OSError:
        pass
    return ""


def main() -> None:
    """Replace this process by the rank, without returning."""
    record = Path(sys.argv[1])
    launch = Records(record.parent).known(record.stem).launch
    environment = {**os.environ, **torch_environment(os.environ)}
    interface = interface_to(environment["MASTER_ADDR"])
    if interface and interface != "lo":
        environment = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **environment}
    words = [sys.executable, "-m", "paceline.training", *words_of_training(launch)]
    os.execve(sys.executable, words, environment)


if __name__ == "__main__":
    main()
