"""Creation and removal of the namespaces of a topology. The journal lists each before it is created."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.errors import UserError
from paceline.lab import card, journal, kernel, slurm
from paceline.lab.journal import LabState
from paceline.lab.kernel import CommandFailed
from paceline.lab.topology import Topology


def make(topology: Topology, say: Callable[[str], None]) -> LabState:
    """Make the namespaces of the topology, each recorded in the journal first. If a command fails, remove them and raise
    UserError."""
    state = LabState(topology, "building", dict.fromkeys(topology.namespaces))
    state.save()
    try:
        for count, entry in enumerate(topology.namespaces):
            say(f"namespace {count + 1} of {len(topology.namespaces)}: {entry}")
            state = state.created(entry, kernel.add_namespace(entry))
            state.save()
        commands = topology.commands() if topology.link is not None else []
        for count, command in enumerate(commands):
            if count % 100 == 0:
                say(f"command {count + 1} of {len(commands)}")
            kernel.system(command)
        if topology.nic:
            card.start(topology, journal.card_directory(topology.name), say)
        if topology.slots:
            slurm.start(topology, journal.slurm_directory(topology.name), say)
        state = replace(state, phase="up")
        state.save()
        return state
    except CommandFailed as error:
        remove(state)
        raise UserError(f"cannot make the lab: {error}", "nothing of it is left") from error
    except BaseException:
        remove(state)
        raise


def remove(state: LabState) -> list[str]:
    """Delete the namespaces in the journal that are still the same, then the journal's file.

    Returns lines for the user. Raises UserError if a part cannot be removed.
    """
    notes, failed = [], []
    for host in range(state.topology.hosts if state.topology.nic else 0):
        card.stop_host(state.topology, journal.card_directory(state.topology.name), host)
    for entry, inode in state.namespaces.items():
        if not kernel.exists(entry):
            continue
        if not kernel.is_same(entry, inode):
            notes.append(f"{entry} is now another's namespace; left alone")
            continue
        ended, others = kernel.end_processes(entry, state.topology.name)
        try:
            kernel.delete_namespace(entry)
        except CommandFailed as error:
            failed.append(str(error))
        if ended:
            starter = "the lab's Slurm or exec" if state.topology.slots else "paceline lab exec"
            notes.append(f"{entry}: ended {_processes(ended)} that {starter} started")
        if others:
            notes.append(f"{entry}: {_processes(others)} not of Paceline left running, without a network")
    if failed:
        raise UserError(f"cannot remove all of lab {state.topology.name!r}: {failed[0]}", "paceline lab down again, with sudo")
    state.delete()
    return notes


def _processes(pids: Sequence[int]) -> str:
    return f"process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}"
