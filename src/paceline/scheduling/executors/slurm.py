"""Executor of jobs on a Slurm cluster: one batch file per job, which is found again by its name. Only machine-readable output
of Slurm is parsed.

To change its size a job saves, ends, and is submitted again under its name. A requeued job would not keep the devices of each
node that ``scontrol update`` requests: on Slurm 22.05 three on each of three nodes became 4, 3 and 2. A job that only gives
back whole nodes is shrunk by ``scontrol`` and keeps its allocation. After a node failure Slurm itself requeues the job.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paceline.errors import UserError
from paceline.scheduling.executors.batch_file import batch_file
from paceline.scheduling.executors.executor import NodeDevices, Observed, Phase, Unavailable, check_fits
from paceline.scheduling.executors.records import JobRecord, Records, ended
from paceline.scheduling.launch import Launch

ANSWER_S = 60.0
PREFIX = "paceline-"
_PHASES: Mapping[str, Phase] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "REQUEUED": "waiting",
    "REQUEUE_HOLD": "waiting",
    "SPECIAL_EXIT": "waiting",
    "SUSPENDED": "waiting",
    "RUNNING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "RESIZING": "running",
    "STOPPED": "running",
    "COMPLETING": "stopping",
}
"""Phase by state of Slurm. All other states mean that the job has ended."""
_AWAY = ("down", "drain", "fail", "unk", "maint", "power", "reboot", "inval")
_DRAINING = "draining"


@dataclass(frozen=True)
class _QueueLine:
    """Line of the output of squeue."""

    number: int
    state: str
    reason: str
    start: str

    def start_s(self) -> float | None:
        """Start in seconds of the epoch; None if it has not started."""
        try:
            return datetime.fromisoformat(self.start).timestamp()
        except ValueError:
            return None


class SlurmExecutor:
    """Executor of jobs through sbatch.

    Args:
        directory: folder of records, batch files and logs, at the same path on every node.
        enter: words put before each Slurm command, as ``Lab.slurm`` gives them.
        gpus: True if a device is a GPU (``--gres=gpu``), false for a CPU of a node.
        prefix: prefix of job names in Slurm.
        options: further lines of the batch file, such as ``--partition=long``.
        python: interpreter on every node.

    Raises:
        UserError: a folder that cannot be written.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        enter: Sequence[str] = (),
        gpus: bool = False,
        prefix: str = PREFIX,
        options: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        self._records, self._python = Records(directory), python
        self._enter, self._gpus, self._prefix, self._options = tuple(enter), gpus, prefix, tuple(options)

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Return the nodes that are up, with their CPUs or GPUs. Raises Unavailable.

        On a draining node jobs run to their end and no job starts. It counts with the devices that jobs of this executor hold
        there, so it offers none.
        """
        return tuple((name, devices) for name, (devices, _) in self._look_at_nodes().items())

    def device_types(self) -> dict[str, str]:
        """Return the GPU type by node, as Slurm names it. Nodes with no or several types are left out."""
        types: dict[str, str] = {}
        for line in self._slurm_output("sinfo", "--noheader", "-N", "--format=%N|%G").splitlines():
            name, _, gres = line.strip().partition("|")
            named = set(re.findall(r"(?:^|,)gpu:([^:,(]+):\d+", gres))
            if len(named) == 1:
                types[name] = named.pop()
        return types

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Submit the job to the queue for these nodes. A job that Slurm already has under its name is left alone.

        Raises:
            UserError: an impossible placement, or one that Slurm refuses. Unavailable: Slurm does not answer.
        """
        entry = self._queue().get(launch.name)
        if entry is not None and entry.state in _PHASES:
            return
        nodes = self._look_at_nodes()
        check_fits(launch, placement, [(name, devices) for name, (devices, _) in nodes.items()])
        self._queue_up(self._records.start(launch, placement), nodes)

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Shrink the job in place, or make it save and end, so that a later ``poll`` submits it at the new size.

        Raises:
            UserError: an unknown job, an impossible placement. Unavailable: Slurm does not answer.
        """
        record = self._records.known(name)
        nodes = self._look_at_nodes()
        check_fits(record.launch, placement, [(node, devices) for node, (devices, _) in nodes.items()])
        entry = self._queue().get(name)
        runs = entry is not None and entry.state == "RUNNING" and record.stop_since is None
        if runs and entry is not None and record.launch.is_paceline and gives_nodes_back(record.placement, placement):
            kept = {node: placement[node] for node in sorted(placement, key=_natural)}
            hosts = "".join(f"{node}\n" * devices for node, devices in kept.items())
            # requeued, it would come back on all of its nodes
            self._slurm_output("scontrol", "update", f"JobId={entry.number}", "Requeue=0")
            self._records.write(self._records.path(name, "shrink"), hosts)
            self._records.save(replace(record, placement=kept))
            self._slurm_output("scancel", "--batch", f"--signal={record.launch.signal}", str(entry.number))
            return
        self._signal_once(record.stopping(record.launch.grace_s, dict(placement)), entry)
        self.poll()

    def stop(self, name: str, grace_s: float) -> None:
        """Signal the job's script, or remove a waiting job from the queue. Raises UserError, Unavailable."""
        record = self._records.known(name)
        self._signal_once(record.stopping(grace_s), self._queue().get(name))

    def poll(self) -> Mapping[str, Observed]:
        """Return the present state of every job. Raises Unavailable."""
        queue = self._queue()
        return {record.launch.name: self._state(record, queue.get(record.launch.name)) for record in self._records.all()}

    def _state(self, record: JobRecord, entry: _QueueLine | None) -> Observed:
        if entry is None or entry.state not in _PHASES:
            seen = self._ended(record, entry)
            if record.target is None or seen.phase == "done":
                return seen
            record = self._records.start(record.launch, record.target)
            self._queue_up(record, self._look_at_nodes())
            return replace(seen, phase="waiting", placement=record.placement, since=record.since, code=None)
        if record.is_late and entry.state != "COMPLETING":
            self._slurm_output("scancel", str(entry.number))
        told = record.stop_since is not None
        return Observed(
            phase="stopping" if told else _PHASES[entry.state],
            placement=record.placement,
            target=record.target,
            since=record.stop_since or (entry.start_s() if entry.state == "RUNNING" else None) or record.since,
            progress=record.progress,
            reason="" if entry.reason == "None" else entry.reason,
        )

    def _ended(self, record: JobRecord, entry: _QueueLine | None) -> Observed:
        end = self._records.end(record.launch.name)
        if end is not None:
            return ended(record, end)
        if entry is not None:  # its script did not end by itself
            return ended(record, None, f"Slurm ended it: {entry.state.lower()}")
        state, code = self._accounted(record)
        return ended(record, None, f"Slurm ended it: {state.lower()}" if state else "Slurm does not know it any more", code)

    def _accounted(self, record: JobRecord) -> tuple[str, int | None]:
        """Return state and exit code of a job that the controller has forgotten, from Slurm's accounting if there is any."""
        if not record.handle:
            return "", None
        try:
            lines = self._slurm_output("sacct", "-X", "-n", "-P", "-j", record.handle, "--format=State,ExitCode").splitlines()
        except Unavailable:
            return "", None
        words, _, code = lines[-1].partition("|") if lines else ("", "", "")
        state = (words.split() or [""])[0]  # "CANCELLED by 0", whose code says nothing
        return state, int(code.partition(":")[0]) if state in ("COMPLETED", "FAILED") and code[:1].isdigit() else None

    def _signal_once(self, record: JobRecord, entry: _QueueLine | None) -> None:
        """Save the record, then tell the job to end once."""
        before = self._records.known(record.launch.name)
        self._records.save(record)
        if entry is None or entry.state not in _PHASES:
            return
        if _PHASES[entry.state] == "waiting":
            self._slurm_output("scancel", str(entry.number))
        elif before.stop_since is None:
            self._slurm_output("scancel", "--batch", f"--signal={record.launch.signal}", str(entry.number))

    def _queue_up(self, record: JobRecord, nodes: Mapping[str, tuple[int, str]]) -> None:
        """Save the record, then write the batch file and submit it."""
        name = record.launch.name
        hosts = sorted(record.placement, key=_natural)  # Slurm's order: the script runs on the first
        record = replace(record, placement={node: record.placement[node] for node in hosts})
        text = batch_file(
            record.launch,
            record.placement,
            record=self._records.path(name, "json"),
            master=nodes[hosts[0]][1] if hosts[0] in nodes else hosts[0],
            slurm_name=self._prefix + name,
            python=self._python,
            gpus=self._gpus,
            options=self._options,
        )
        script = self._records.path(name, "sh")
        self._records.write(script, text)
        self._records.clear_end(name)
        self._records.path(name, "shrink").unlink(missing_ok=True)
        self._records.save(record)
        number = self._slurm_output("sbatch", "--parsable", str(script)).strip().partition(";")[0]
        self._records.save(replace(record, handle=number))

    def _queue(self) -> dict[str, _QueueLine]:
        """Return the queue lines of this executor's jobs by name. Of several, return the one that has not ended, else the last.

        This executor never has two active jobs of one name. If somebody submitted the batch file again, the later job is
        cancelled:
        two runs would write one checkpoint.
        """
        entries: dict[str, _QueueLine] = {}
        for line in self._slurm_output("squeue", "--noheader", "--states=all", "--format=%i|%j|%T|%S|%r").splitlines():
            number, name, state, start, reason = (line.strip().split("|", 4) + [""] * 5)[:5]
            if not name.startswith(self._prefix) or not number.isdigit():
                continue
            entry, name = _QueueLine(int(number), state, reason, start), name.removeprefix(self._prefix)
            other = entries.get(name)
            if other is not None and other.state in _PHASES and state in _PHASES:
                first, last = sorted((entry, other), key=lambda e: e.number)
                if last.state != "COMPLETING":
                    self._slurm_output("scancel", str(last.number))
                entry = first
            elif other is not None:
                entry = max(entry, other, key=lambda e: (e.state in _PHASES, e.number))
            entries[name] = entry
        return entries

    def _look_at_nodes(self) -> dict[str, tuple[int, str]]:
        """Return devices and address of every node that is up.

        A draining node counts with the devices that this executor's jobs hold.
        """
        nodes: dict[str, tuple[int, str]] = {}
        draining = []
        for line in self._slurm_output("sinfo", "--noheader", "-N", "--format=%N|%c|%G|%o|%T").splitlines():
            name, cpus, gres, address, state = (line.strip().split("|") + [""] * 5)[:5]
            drains = state.startswith(_DRAINING)
            away = state.endswith("*") or any(word in state for word in _AWAY if not drains)
            devices = gpus_of(gres) if self._gpus else int(cpus)
            if not away and devices:
                nodes[name] = (devices, address)
                draining += [name] * drains
        held = self._held() if draining else {}
        left = {name: held.get(name, 0) if name in draining else devices for name, (devices, _) in nodes.items()}
        return {name: (left[name], address) for name, (_, address) in nodes.items() if left[name]}

    def _held(self) -> Mapping[str, int]:
        """Return the devices of each node on which this executor's jobs run."""
        queue, held = self._queue(), Counter[str]()
        for record in self._records.all():
            entry = queue.get(record.launch.name)
            if entry is not None and _PHASES.get(entry.state) in ("running", "stopping"):
                held.update(record.placement)
        return held

    def _slurm_output(self, *words: str) -> str:
        """Run a Slurm command and return its stdout. Raises Unavailable if Slurm does not answer, UserError if it refuses."""
        command = [*self._enter, *words]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise UserError(f"no program {command[0]!r}", "install Slurm's client commands") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{shlex.join(words)}: {error}") from error
        if answer.returncode == 0:
            return answer.stdout
        said = " ".join((answer.stderr or answer.stdout).split()) or f"code {answer.returncode}"
        if words[0] == "scancel" and re.search(r"[Ii]nvalid job id|already completing|completed", said):
            return ""  # it has just ended by itself
        if words[0] == "sbatch" and not re.search(r"[Uu]nable to contact|[Tt]imed out|[Ss]ocket|[Cc]onnection", said):
            raise UserError(f"Slurm refuses {words[-1]}: {said}", "see its #SBATCH lines")
        raise Unavailable(f"{words[0]}: {said}")


def gives_nodes_back(before: NodeDevices, after: NodeDevices) -> bool:
    """Return whether ``after`` is ``before`` minus whole nodes, and still has the first node, on which the script runs."""
    first = min(before, key=_natural)
    return len(after) < len(before) and first in after and all(before.get(node) == n for node, n in after.items())


def gpus_of(gres: str) -> int:
    """Return the number of GPUs in Slurm's generic resources, such as ``gpu:a100:4(S:0-1)``."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres))


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts ``h2`` before ``h10``, like Slurm."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name)]
