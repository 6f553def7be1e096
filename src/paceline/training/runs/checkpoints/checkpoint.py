"""Checkpoints: the newest and the previous one, each written atomically, and read without running code from them.

A checkpoint is ``checkpoint.pt``, with the state that is equal on every rank, and a part of each rank: in the same file, or in
files of ``checkpoint.parts`` that the ranks write themselves. A part has the rank's residuals, and its rows of tensors that
ranks share out. All are zip archives, as ``torch.save`` writes them, with a checksum of each of their records (CRC-32).
``checkpoint.pt`` is written last and names its parts, so it is whole when it is there.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from paceline.errors import UserError, shorten
from paceline.rundir import unwritable
from paceline.strategy.strategy import CHOICES
from paceline.training.runs.checkpoints.state_shards import joined, whole
from paceline.training.runs.training_run import TrainingRun

FILE, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
PARTS = "checkpoint.parts"
"""Directory of the files that ranks have written themselves."""
_SCHEMA = 3
_READ = (1, 2, 3)  # 1: after whole epochs only, the ranks' states of the hook as ``hook``; up to 2: every tensor whole
_ITS_PART = "its part "
_passed_over: set[Path] = set()  # newest checkpoints that this process could not go on from: none becomes the previous one


def save(
    directory: Path,
    run: TrainingRun,
    epoch: int,
    state: Mapping[str, Any],
    *,
    step: int = 0,
    part_files: Collection[str] = (),
) -> None:
    """Write ``state`` as the newest checkpoint; the old newest one becomes the previous one, unless ``load`` has rejected it.

    Args:
        epoch, step: epochs that are complete, and steps of the next one.
        state: the state that is equal on every rank (``model``, ``optimizer``, ``curve``), and ``parts``, a list with the
            part of each rank, unless they are in files.
        part_files: names of files in ``PARTS``, in the order of ranks, that ``write_part`` has written.

    Raises:
        UserError: the disk does not take it; the checkpoints of before are left as they are.
    """
    place = {"epoch": epoch, "step": step, "id": secrets.token_hex(8)}
    data = {"schema": _SCHEMA, "job": run.to_json(), **place, "part_files": list(part_files), **state}
    path, previous = directory / FILE, directory / PREVIOUS
    temporary = directory / f".{FILE}.tmp"  # one name: what an ended run has left is written over
    _write(temporary, path, data)
    keeps = path.exists() and path.resolve() not in _passed_over
    gone, stays = (previous, path) if keeps else (path, previous)
    dropped = _part_files(gone) - _part_files(stays)
    try:
        if keeps:
            _link_previous(path, previous)
        temporary.replace(path)
        _passed_over.discard(path.resolve())
        sync_directory(directory)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise unwritable(path, error) from error
    for name in dropped - set(part_files):
        with suppress(OSError):
            (directory / PARTS / name).unlink()


def write_alone(path: Path, run: TrainingRun, epoch: int, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint to any file, separate from the newest and the previous one. Raises UserError for a full disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    _write(temporary, path, {"schema": _SCHEMA, "job": run.to_json(), "epoch": epoch, "step": step, **state})
    try:
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def write_part(directory: Path, name: str, part: Mapping[str, Any]) -> None:
    """Write the part of one rank as file ``name`` of ``PARTS``. Raises UserError if it cannot be written."""
    folder = directory / PARTS
    path, temporary = folder / name, folder / f".{name}.tmp"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    _write(temporary, path, {"schema": _SCHEMA, "name": name, **part})
    try:
        temporary.replace(path)
        sync_directory(folder)
    except OSError as error:
        raise unwritable(path, error) from error


def _write(temporary: Path, path: Path, data: Mapping[str, Any]) -> None:
    """Write a file to the disk under its temporary name. If that fails, remove it and raise UserError with ``path``."""
    checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        with temporary.open("wb") as file:
            torch.save(dict(data), file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        cause = error if isinstance(error, OSError) else error.__context__  # torch's archive writer hides the disk's error
        if not isinstance(cause, OSError):
            raise
        raise unwritable(path, cause) from error
    finally:
        torch.serialization.set_crc32_options(checksums)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a loss of power, if the file system can."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _link_previous(path: Path, previous: Path) -> None:
    """Link the file as ``previous`` too, so that there is a newest one at any time."""
    link = previous.with_name(f".{previous.name}.tmp")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # a file system without hard links: for a moment only the previous one is there
        path.replace(previous)
    else:
        link.replace(previous)


def _part_files(path: Path) -> set[str]:
    """Return the parts that a checkpoint names; none if it cannot be read."""
    try:  # mapped: its tensors are not read
        return set(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["part_files"])
    except Exception:
        return set()


def clear_leftovers(directory: Path) -> None:
    """Remove files of an ended run that no checkpoint names. Call this only while no run writes there."""
    used = _part_files(directory / FILE) | _part_files(directory / PREVIOUS)
    left = [path for path in (directory / PARTS).glob("*") if path.name not in used]
    for path in (*left, directory / f".{FILE}.tmp"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def load(directory: Path, run: TrainingRun | None = None, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Return the newest complete checkpoint in ``directory``, with its ``TrainingRun`` as ``run``.

    ``file`` in it is its name. If it is the previous one, ``fallback`` says why the newest is unusable.

    Args:
        run: the run to continue: the newest is foreign if it belongs to another run and the previous one does not.
        mapped, checked: as in ``read``.

    Raises:
        UserError: there is none, or the newest is damaged or foreign and there is no usable previous one. It names both.
    """
    newest, previous = directory / FILE, directory / PREVIOUS
    if not newest.is_file() and not previous.is_file():
        raise UserError(f"no {FILE} in {directory}", "give the `out` directory of the run to go on with")
    try:
        state = read(newest, mapped=mapped, checked=checked)
        if run is not None:
            check_same_settings(run, state)
    except UserError as error:
        if not previous.is_file():
            raise
        try:
            state = read(previous, mapped=mapped, checked=checked)
            if run is not None:
                check_same_settings(run, state)
        except UserError as other:
            if other.message == error.message:
                raise error from None
            raise UserError(f"{error.message}; the one before: {other.message}", error.fix) from other
        _passed_over.add(newest.resolve())
        return {**state, "file": PREVIOUS, "fallback": error.message}
    return {**state, "file": FILE, "fallback": ""}


def read(path: Path, ranks: Collection[int] | None = None, *, mapped: bool = False, checked: bool = True) -> dict[str, Any]:
    """Read the checkpoint in file ``path``.

    Args:
        ranks: ranks whose parts are wanted, None for all.
        mapped: whether tensors stay on the disk until they are used. Tensors in shards are then ``SharedTensor``,
            from which a rank takes its rows, and else whole.
        checked: True to compare all requested bytes with their checksums. If not, those of tensors are not; and
            unless ``mapped``, tensors that ranks share out are left out.

    Raises:
        UserError: it is missing, a byte of it or of a part has changed, or no run has written its content.
    """
    joins, mapped = mapped or checked, mapped or not checked
    try:
        state = _loaded(path, mapped, checked)
        known = state["schema"] in _READ
        if known:
            state["run"] = _run_of(state)
            wanted = [name for rank, name in enumerate(state["part_files"]) if ranks is None or rank in ranks]
            if wanted:
                state["parts"] = [_part(path.parent / PARTS / name, mapped, checked) for name in wanted]
            if "hook" not in state:
                state["hook"] = [part["hook"] for part in state["parts"] if "hook" in part]
            if joins and state["sharers"]:
                state |= with_shards(state, _shards(state, path.parent / PARTS), mapped)
    except Exception as error:  # torch.load raises whatever the damage leads to
        text = error.message if isinstance(error, UserError) else str(error)
        why = next(iter(text.splitlines()), type(error).__name__)
        fix = f"keep {PARTS} next to it, or start" if why.startswith(_ITS_PART) else "start"
        raise UserError(f"{path} cannot be read: {shorten(why)}", f"{fix} again without `resume`") from error
    if not known:
        schema = shorten(str(state["schema"]))
        raise UserError(f"{path} has schema {schema}, this version reads {_SCHEMA}", "use the version that wrote it")
    return state


def _loaded(path: Path, mapped: bool, checked: bool) -> dict[str, Any]:
    """Return the content of a file whose checksums match. Raises any exception for a damaged file."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip() if checked else None
        if not checked:
            for name in (each for each in archive.namelist() if each.endswith("/data.pkl")):
                archive.read(name)  # compared as it is read: all that is no tensor
    if damaged:
        raise ValueError(f"{damaged} does not match its checksum")
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(state, dict) or "schema" not in state:
        raise ValueError("it is no checkpoint of Paceline")
    return _with_defaults(state)


def _with_defaults(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with defaults for the entries that earlier schemas lack."""
    for name, empty in (("step", 0), ("part_files", []), ("parts", []), ("sharers", 0), ("id", "")):
        state.setdefault(name, empty)
    return state


def _part(path: Path, mapped: bool, checked: bool) -> dict[str, Any]:
    """Read the part in file ``path``. Raises ValueError with its name, or any exception for a damaged file."""
    try:
        part = _loaded(path, mapped, checked)
        if part["name"] != path.name:
            raise ValueError(f"it is {part['name']}")
    except Exception as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{_ITS_PART}{path.name}: {why}") from error
    return part


def _shards(state: Mapping[str, Any], folder: Path) -> list[Any]:
    """Return the shards of the ranks that hold all of them, checked only on request. Raises any exception for a damaged
    file."""
    parts = {part["rank"]: part for part in state["parts"]}
    for rank, name in enumerate(state["part_files"][: state["sharers"]]):
        if rank not in parts:
            parts[rank] = _part(folder / name, mapped=True, checked=False)
    return [parts[rank]["shards"] for rank in range(state["sharers"])]


def with_shards(state: Mapping[str, Any], shards: Sequence[Any], mapped: bool) -> dict[str, Any]:
    """Return ``model`` and ``optimizer`` with the tensors that ranks share, with ``mapped`` as for ``read``.

    Args:
        shards: shards of the ranks that have them all, as of ``Trainer.shards``.

    Raises:
        ValueError: rows are missing.
    """
    full = joined({name: state[name] for name in ("model", "optimizer")}, shards)
    return dict(full if mapped else whole(full))


def _run_of(state: dict[str, Any]) -> TrainingRun:
    """Return the run that wrote the checkpoint. Raises UserError or ValueError if the state belongs to no run."""
    epoch, step, curve, names = state["epoch"], state["step"], state["curve"], state["part_files"]
    if type(epoch) is not int or type(step) is not int or min(epoch, step) < 0 or not epoch + step:
        raise ValueError(f"epoch is {epoch!r}, step {step!r}")
    if not isinstance(curve, list) or not all(isinstance(entry, dict) for entry in curve):
        raise ValueError(f"curve is {curve!r}")
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ValueError(f"parts are {names!r}")
    if not isinstance(state["parts"], list) or not all(isinstance(part, dict) for part in state["parts"]):
        raise ValueError("parts are no list of states")
    return TrainingRun.from_json(state["job"])


def place(state: Mapping[str, Any]) -> str:
    """Describe the place of a checkpoint in its run."""
    return f"step {state['step']} of epoch {state['epoch'] + 1}" if state["step"] else f"epoch {state['epoch']}"


def kept(run: TrainingRun) -> str:
    """Describe the checkpoint that an interrupted run leaves."""
    directory = Path(run.out)
    if not any((directory / name).is_file() for name in (FILE, PREVIOUS)):
        return f"no checkpoint was written, so nothing is kept in {directory}"
    try:  # unchecked: whoever waits for this may not wait long
        state = load(directory, run, checked=False)
    except UserError as error:
        return f"{directory} has no checkpoint that this run can go on from: {error.message}"
    return f"the checkpoint of {place(state)} is kept; resume {directory} to go on"


def refuse_unfinished(directory: Path) -> None:
    """Raise UserError if an incomplete run has left a checkpoint, which a new run would overwrite."""
    try:
        state = load(directory, checked=False)
    except UserError:  # there is no usable one
        return
    if state["epoch"] < state["run"].epochs:
        where = f"{place(state)} of {state['run'].epochs}"
        raise UserError(
            f"{directory} holds the checkpoint of a run that is not over, {where}; a new run would write over it",
            f"go on with --resume {directory}, name another --out, or remove {FILE} and {PREVIOUS}",
        )


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """Return the changes of a setting in the words of its options, ``min-elements 1024 -> 64``; none if it is the same."""
    if before == now:
        return []
    if isinstance(before, Mapping) or isinstance(now, Mapping):
        old, new = before or {}, now or {}
        parts = [part for part in {**old, **new} if old.get(part) or new.get(part)]
        if found := [each for part in parts for each in _changes(part, old.get(part), new.get(part))]:
            return found
    word = CHOICES[name].option if name in CHOICES else {"names": "dense"}.get(name, "")
    return [f"{word or name.replace('_', '-')} {_said(before)} -> {_said(now)}"]


def _said(value: Any) -> str:
    """Return a value of a setting as one writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else repr(value)


def check_same_run(run: TrainingRun, state: Mapping[str, Any]) -> None:
    """Raise UserError with the differences if ``run`` would not continue the run of the checkpoint."""
    check_same_settings(run, state)
    if run.epochs <= state["epoch"]:
        raise UserError(f"the checkpoint already has {state['epoch']} epochs", "ask for more `epochs` than that")


def check_same_settings(run: TrainingRun, state: Mapping[str, Any]) -> None:
    """Raise UserError with the differences if the checkpoint belongs to a run with other settings.

    On a mesh with copies of the shards (HSDP) the usual exchange differs, so it may change between the two.
    """
    # Earlier versions left the size of the nodes open; all of them ran on those of the launcher.
    old = state["run"].on_nodes_of(run.strategy.gradient_exchange.ranks_per_node)
    usual = run.strategy.has_usual_exchange and old.strategy.has_usual_exchange
    before, now = old.identity, {k: v for k, v in run.identity.items() if not (usual and k == "exchange")}
    changed = [each for k, v in now.items() if k in before for each in _changes(k, before[k], v)]
    if changed:
        raise UserError(
            f"the checkpoint is from a run with other settings: {', '.join(changed)}", "resume with the same settings"
        )
