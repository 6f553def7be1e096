"""Executor of jobs on a Ray cluster: one placement group per job, one bundle per node, and one actor per bundle for the script.

Groups and actors are detached and named after the job, so they outlive the runner and are found again. Needs ``ray``.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.executors.executor import NodeDevices, Observed, Unavailable, check_fits
from paceline.scheduling.executors.records import JobRecord, Records, body, ended, words_of_training
from paceline.scheduling.launch import Launch

NAMESPACE = "paceline"
FIRST_PORT, PORTS = 20_000, 10_000
ANSWER_S = 30.0
_NODE = "ray.io/node-id"


class Agent:
    """Actor of a bundle that runs a script in a separate session."""

    def __init__(self, script: str, log: str, environment: Mapping[str, str]) -> None:
        with Path(log).open("ab") as file:
            self._process = subprocess.Popen(
                ["/bin/bash", script],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def runs(self) -> bool:
        """Return whether the script is still running."""
        return self._process.poll() is None

    def tell(self, number: int) -> None:
        """Send the script a signal; SIGKILL goes to its whole process group."""
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            elif self.runs():
                os.kill(self._process.pid, number)


class RayExecutor:
    """Executor of jobs on Ray.

    Args:
        directory: folder of records, scripts and logs, at the same path on every node.
        address: address of the cluster, as ``ray.init`` takes it.
        gpus: True if a device is a GPU, false for a CPU.
        python: interpreter on every node.

    Raises:
        UserError: Ray is not installed, or the folder cannot be written.
    """

    def __init__(self, directory: str | Path, address: str = "auto", gpus: bool = True, python: str = sys.executable) -> None:
        try:
            ray: Any = import_module("ray")
        except ModuleNotFoundError:
            raise UserError("the ray executor needs Ray", "install it: pip install 'paceline[ray]'") from None
        self._ray = ray
        self._records, self._resource, self._python = Records(directory), "GPU" if gpus else "CPU", python
        if not ray.is_initialized():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Return the nodes that are alive, by Ray's node id, with their devices."""
        return tuple((node["NodeID"], int(node["Resources"].get(self._resource, 0))) for node in self._alive())

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Create the group and its actors, which Ray starts when there is room.

        Raises UserError for an impossible placement.
        """
        if self._agents(launch.name):
            return
        self._check(launch, placement)
        self._start(self._records.start(launch, placement))

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Stop the job; a later ``poll`` starts it at the new size. Raises UserError for an impossible placement."""
        record = self._records.known(name)
        self._check(record.launch, placement)
        self._request_stop(record.stopping(record.launch.grace_s, dict(placement)))

    def stop(self, name: str, grace_s: float) -> None:
        """Send the job its signal; a later ``poll`` kills it after ``grace_s`` seconds. Raises UserError for an unknown job."""
        self._request_stop(self._records.known(name).stopping(grace_s))

    def poll(self) -> Mapping[str, Observed]:
        """Return the present state of every job."""
        return {record.launch.name: self._state(record) for record in self._records.all()}

    def _state(self, record: JobRecord) -> Observed:
        name, agents, told = record.launch.name, self._agents(record.launch.name), record.stop_since is not None
        waits = bool(agents) and self._group_state(name) in ("PENDING", "RESCHEDULING", "PREPARED")
        if agents and (waits and not told):
            return Observed(phase="waiting", placement=record.placement, since=record.since, reason="no room yet")
        running = [] if waits else [agent for agent in agents if self._runs(agent)]
        if len(running) == len(record.placement) or (running and not self._one_ended(record)):
            if record.is_late:
                self._send(running, signal.SIGKILL)
            return Observed(
                phase="stopping" if told else "running",
                placement=record.placement,
                target=record.target,
                since=record.stop_since or record.since,
                progress=record.progress,
            )
        self._send(running, signal.SIGKILL)  # ranks on other nodes are gone
        self._remove(name, agents)
        ends = [end for n in range(len(record.placement)) if (end := self._records.end(f"{name}.{n}"))]
        worst = max(ends, key=lambda end: (end.code != 0, end.told), default=None)
        seen = ended(record, worst if len(ends) == len(record.placement) or (worst and worst.code) else None)
        if record.target is None or seen.phase == "done":
            return seen
        fresh = self._records.start(record.launch, record.target)
        self._start(fresh)
        return replace(seen, phase="waiting", placement=fresh.placement, since=fresh.since, code=None)

    def _start(self, record: JobRecord) -> None:
        ray, launch, placement = self._ray, record.launch, record.placement
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in self._alive()}
        nodes = list(placement)
        port = FIRST_PORT + int(record.since * 10) % PORTS
        self._records.save(record)
        hosts = nodes if launch.is_paceline else nodes[:1]
        bundles = [{self._resource: float(placement[node])} for node in nodes]
        selectors = [{_NODE: node} for node in nodes]
        group = ray.util.placement_group(
            bundles, name=self._group_name(launch.name), lifetime="detached", bundle_label_selector=selectors
        )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for number, node in enumerate(nodes):
            stem = f"{launch.name}.{number}"
            rendezvous = f"--nnodes {len(nodes)} --node-rank {number} --nproc-per-node {placement[node]}"
            rendezvous += f" --master-addr {addresses[nodes[0]]} --master-port {port}"
            words = shlex.join([self._python, "-m", "torch.distributed.run"]) + f" {rendezvous} -m paceline.training "
            start = words + shlex.join(words_of_training(launch)) if launch.is_paceline else shlex.join(launch.command)
            script = self._records.path(stem, "sh")
            self._records.clear_end(stem)
            text = body(launch, start if node in hosts else "true", self._records.path(stem, "end"))
            self._records.write(script, "#!/bin/bash\n" + text)
            devices = {"num_gpus": placement[node], "num_cpus": 0} if self._resource == "GPU" else {"num_cpus": placement[node]}
            environment = {"PACELINE_DEVICES": str(sum(placement.values()))}
            options = {**devices, "name": self._agent_name(launch.name, number), "lifetime": "detached", "namespace": NAMESPACE}
            options["scheduling_strategy"] = strategy(group, placement_group_bundle_index=number)
            ray.remote(Agent).options(**options, get_if_exists=True).remote(
                str(script), str(self._records.path(launch.name, "log")), environment
            )

    def _check(self, launch: Launch, placement: NodeDevices) -> None:
        check_fits(launch, placement, self.nodes())
        if launch.is_paceline and len(set(placement.values())) > 1:
            counts = ", ".join(map(str, placement.values()))
            raise UserError(
                f"job {launch.name} gets {counts} devices on its nodes", "torchrun needs the same number on every node"
            )

    def _request_stop(self, record: JobRecord) -> None:
        before = self._records.known(record.launch.name)
        self._records.save(record)
        if before.stop_since is None:
            if self._group_state(record.launch.name) == "CREATED":
                self._send(self._agents(record.launch.name), record.launch.signal_number())
            else:
                self._remove(record.launch.name, self._agents(record.launch.name))

    def _send(self, agents: Sequence[Any], number: int) -> None:
        for agent in agents:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(agent.tell.remote(int(number)), timeout=ANSWER_S)

    def _runs(self, agent: Any) -> bool:
        try:
            return bool(self._ray.get(agent.runs.remote(), timeout=ANSWER_S))
        except self._ray.exceptions.GetTimeoutError as error:
            raise Unavailable(f"ray: {error}") from error
        except self._ray.exceptions.RayError:  # it died, with its node or by itself
            return False

    def _one_ended(self, record: JobRecord) -> bool:
        """Return whether a rank has failed or the only command of a job has ended. Either ends the job."""
        launch, ranks = record.launch, len(record.placement) if record.launch.is_paceline else 1
        ends = [self._records.end(f"{launch.name}.{n}") for n in range(ranks)]
        return any(end is not None and (end.code != 0 or not launch.is_paceline) for end in ends)

    def _agents(self, name: str) -> list[Any]:
        record = self._records.load(name)
        agents = []
        for number in range(len(record.placement) if record else 0):
            with suppress(ValueError):
                agents.append(self._ray.get_actor(self._agent_name(name, number), namespace=NAMESPACE))
        return agents

    def _remove(self, name: str, agents: Sequence[Any]) -> None:
        for agent in agents:
            self._ray.kill(agent)
        with suppress(ValueError):
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(self._group_name(name)))

    def _group_state(self, name: str) -> str:
        try:
            group = self._ray.util.get_placement_group(self._group_name(name))
        except ValueError:
            return ""
        return str(self._ray.util.placement_group_table(group).get("state", ""))

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get(self._resource)]

    def _group_name(self, name: str) -> str:
        return f"{NAMESPACE}-{self._records.directory.name}-{name}"

    def _agent_name(self, name: str, number: int) -> str:
        return f"{self._group_name(name)}-{number}"
