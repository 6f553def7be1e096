"""Question that files ask together: each file's kind is told by its content, and what they state is joined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from paceline.errors import UserError
from paceline.questions.facts import Reading, StatedFact
from paceline.questions.readers.clouds import is_cloud, read_cloud
from paceline.questions.readers.keys import tool_keys, tool_of
from paceline.questions.readers.launches import STARTERS, read_commands
from paceline.questions.readers.python_settings import python_module, read_python
from paceline.questions.readers.remarks import read_remarks
from paceline.questions.readers.settings import read_settings
from paceline.questions.readers.source import Source, json_tree, leaves, printed_tree, read_source, toml_tree, yaml_tree

_STAGE = re.compile(r"(?:z|zero|stage)[_-]?(?:stage)?[_-]?([0-3])(?!\d)", re.IGNORECASE)
_SHELL = re.compile(rf"^(?:#!.*sh\b|#SBATCH\b|(?!\s*#).*\b(?:{'|'.join(STARTERS)})\b.*(?:--|\.py|train))", re.MULTILINE)
_RUNS = {
    "log_history": "the log of a run",
    "traceEvents": "a trace of a run",
    "train_runtime": "the result of a run",
}
"""Keys of files that a run has written."""
_LOG = re.compile(r"\b(?:loss|iter(?:ation)?|step|tps|tokens?_?(?:per_sec|/s)|it/s)\b.*\d", re.IGNORECASE)
_MONITOR = re.compile(r"NVIDIA-SMI|NCCL INFO")
_NCCL = re.compile(r"^\s*(?!#)\S.*NCCL_(?:IB|P2P)_DISABLE=1|^NCCL_(?:IB|P2P)_DISABLE=1", re.MULTILINE)
_MODEL_KEYS = ("architectures", "model_type")
_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "n_layer",
    "n_embd",
    "d_model",
    "text_config",
    "vision_config",
    "block_out_channels",
)
_KINDS = (
    "DeepSpeed JSON, Accelerate, axolotl, LLaMA-Factory, NeMo or Lightning YAML, torchtitan TOML or Python, a script or a line "
    "that starts a training, arguments of a Trainer, or a Hugging Face config.json"
)


_OF_RUNS = "paceline records import reads logs, and paceline diagnose --log; --from takes the settings of a training"


class RunFileError(UserError):
    """Error for a file that a run has written, in place of the settings of a training."""


def run_files(paths: Sequence[str]) -> list[str]:
    """Return those of the files that a run has written."""
    found: list[str] = []
    for path in paths:
        place, function = divided_path(path)
        try:
            read_one(read_source(place), place, function)
        except RunFileError:
            found.append(path)
        except UserError:
            continue
    return found


def sets_nccl(path: str) -> bool:
    """Return whether a script switches off InfiniBand or direct copies between devices, which explains a slow run."""
    return bool(_NCCL.search(read_source(divided_path(path)[0]).text))


def read_files(paths: Sequence[str]) -> Reading:
    """Return what files state, and files that they name.

    Raises:
        UserError: a file that cannot be read, or of no known kind.
    """
    found = Reading()
    done: set[str] = set()
    for path in paths:
        place, function = divided_path(path)
        source = read_source(place)
        done.add(source.name)
        found.add(read_one(source, place, function))
    links, known = found.links, {PurePath(divided_path(path)[0]).name for path in paths}
    found.links = []
    for text, source in links:
        name = PurePath(text).name
        if name in known or name in done or not name:
            continue
        done.add(name)
        _linked(text, source, found)
    return found


def divided_path(path: str) -> tuple[str, str]:
    """Return the path of a file and the function that ``FILE.py:function`` names."""
    place, colon, function = path.rpartition(":")
    return (place, function) if colon and place.endswith(".py") and function.isidentifier() else (path, "")


def read_one(source: Source, path: str = "", function: str = "") -> Reading:
    """Return what one file states, with the remarks of an emitted one. Raises UserError as ``read_files``."""
    found = _read(source, path, function)
    found.add(read_remarks(source))
    return found


def _read(source: Source, path: str, function: str) -> Reading:
    text = source.text
    tree = json_tree(text) or printed_tree(text) or toml_tree(text)
    if tree is None and re.search(r"^resources:", text, re.MULTILINE):
        tree = yaml_tree(source)
    if tree is None and _are_overrides(text):
        return _commands(source)
    if tree is None and _SHELL.search(text) and not _starts_python(text):
        return _commands(source)
    if tree is None and (module := python_module(text)) is not None and not _SHELL.search(text.split("\n", 1)[0]):
        return read_python(module, source, function)
    if tree is None and text.lstrip().startswith("--"):
        return _commands(source)
    tree = yaml_tree(source) if tree is None else tree
    if tree is None:
        return _commands(source)
    if run := next((what for key, what in _RUNS.items() if key in tree), ""):
        raise RunFileError(f"{source.name} is {run}", _OF_RUNS)
    if any(key in tree for key in _MODEL_KEYS) and any(key in tree for key in _SIZES):
        return Reading([StatedFact("workload", path or source.name, source.name, "a network")], understood=1)
    if is_cloud(tree):
        return read_cloud(tree, source)
    paths = [path for path, _ in leaves(tree, source.name)]
    tool = tool_of(paths)
    if not tool:
        raise _of_no_kind(source, f"{source.name} has no settings that are known")
    return read_settings(tool, tree, source)


def _are_overrides(text: str) -> bool:
    """Return whether every line is an override of Hydra or OmegaConf: ``dataset.packed=True``."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "--"))]
    return any("." in line.partition("=")[0] for line in lines) and all(
        re.match(r"\"?\+{0,2}[\w.]+=\S", line) for line in lines
    )


def _starts_python(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return first.startswith(("import ", "from ", '"""', "def ", "class "))


def _commands(source: Source) -> Reading:
    """Return what a script states, with the files that it writes itself."""
    try:
        found, files = read_commands(source)
    except UserError as error:
        raise _of_no_kind(source, error.message) from error
    for link in list(found.links):
        own = PurePath(link[0]).name
        text = next((each for name, each in files.items() if PurePath(name).name == own), "")
        if text.strip():
            found.links.remove(link)
            inner = Source(f"{source.name}, {PurePath(link[0]).name}", text, source.folder)
            try:
                found.add(read_one(inner))
            except UserError:
                found.unknown.append(f"{source.name}: the text of {PurePath(link[0]).name}")
    return found


def _of_no_kind(source: Source, message: str) -> UserError:
    """Return the error for a file without settings; another one for what looks like a log or a table of a run."""
    first = source.text.lstrip().partition("\n")[0]
    if _LOG.search(source.text) or _MONITOR.search(source.text) or first.count(",") > 1:
        return RunFileError(f"{source.name} looks like the log of a run", _OF_RUNS)
    return UserError(message, f"give {_KINDS}")


def _linked(text: str, source: Source, found: Reading) -> None:
    """Read a file that a source names, if it is there; else say what is missing."""
    places: Iterable[Path] = (source.folder / text, source.folder / PurePath(text).name)
    for place in places:
        if place.is_file():
            inner = read_source(str(place))
            found.add(read_one(inner, str(place)))
            found.notes.append(f"{inner.name}, which {source.name} names, is read too.")
            return
    stage = _STAGE.search(PurePath(text).name)
    if stage:
        words, name = f"the name of {text}", f"zero{stage[1]}" if stage[1] != "0" else "ddp"
        found.facts.append(StatedFact("sharding", name, source.name, words, assumed=True))
        found.facts.append(StatedFact("framework", tool_keys()["deepspeed"].framework, source.name, words, 3, assumed=True))
        found.notes.append(f"{text} is not there: ZeRO stage {stage[1]} is taken from its name; add the file to --from.")
    else:
        found.notes.append(f"{text}, which {source.name} names, is not there: add it to --from.")
