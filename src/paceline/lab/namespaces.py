"""From a plan to namespaces and back, with a journal that is always ahead of what exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.errors import UserError
from paceline.lab import kernel
from paceline.lab.kernel import CommandFailed
from paceline.lab.state import State
from paceline.lab.topology import Plan


def make(wanted: Plan, say: Callable[[str], None]) -> State:
    """Make what is planned, journal first. Raises UserError, with nothing left behind, when a command fails."""
    made = State(wanted, "building", dict.fromkeys(wanted.namespaces))
    made.save()
    try:
        for count, entry in enumerate(wanted.namespaces):
            say(f"namespace {count + 1} of {len(wanted.namespaces)}: {entry}")
            made = made.created(entry, kernel.add_namespace(entry))
            made.save()
        commands = wanted.commands() if wanted.link is not None else []
        for count, command in enumerate(commands):
            if count % 100 == 0:
                say(f"command {count + 1} of {len(commands)}")
            kernel.system(command)
        made = replace(made, phase="up")
        made.save()
        return made
    except CommandFailed as error:
        remove(made)
        raise UserError(f"cannot make the lab: {error}", "nothing of it is left") from error
    except BaseException:
        remove(made)
        raise


def remove(found: State) -> list[str]:
    """Delete what the journal lists and is still what it lists; the file goes last.

    Returns a line for each thing there is to know. Raises UserError when a part cannot be removed.
    """
    notes, failed = [], []
    for entry, inode in found.namespaces.items():
        if not kernel.exists(entry):
            continue
        if not kernel.is_same(entry, inode):
            notes.append(f"{entry} is now another's namespace; left alone")
            continue
        ended, others = kernel.end_processes(entry, found.plan.name)
        try:
            kernel.delete_namespace(entry)
        except CommandFailed as error:
            failed.append(str(error))
        if ended:
            notes.append(f"{entry}: ended {_processes(ended)} that paceline lab exec started")
        if others:
            notes.append(f"{entry}: {_processes(others)} not of Paceline left running, without a network")
    if failed:
        raise UserError(f"cannot remove all of lab {found.plan.name!r}: {failed[0]}", "paceline lab down again, with sudo")
    found.delete()
    return notes


def _processes(pids: Sequence[int]) -> str:
    return f"process{'es' * (len(pids) > 1)} {', '.join(map(str, pids))}"
