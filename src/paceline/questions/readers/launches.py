"""Reader of command lines: Slurm's directives, what starts processes, and the arguments of the script that they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from paceline import hardware
from paceline.errors import UserError
from paceline.questions.asked import looked_up, typed_names
from paceline.questions.facts import LINKS, Reading, StatedFact, facts_of
from paceline.questions.readers.keys import tool_keys, tool_of
from paceline.questions.readers.megatron_model import megatron_network
from paceline.questions.readers.settings import add_defaults
from paceline.questions.readers.shell import UNKNOWN, read_script, words_of
from paceline.questions.readers.source import Source
from paceline.strategy.choices.synonyms import (
    ACCELERATE,
    AXOLOTL,
    DEEPSPEED,
    HF,
    LIGHTNING,
    LLAMAFACTORY,
    MEGATRON,
    NEMO,
    TORCHTITAN,
    folded,
)

STARTERS: Mapping[str, str] = {
    "torchrun": "",
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "python": "",
    "python3": "",
    "llamafactory-cli": LLAMAFACTORY,
    "axolotl": AXOLOTL,
    "litgpt": LIGHTNING,
    "fabric": LIGHTNING,
}
"""Programs that start a training, with the tool that they tell."""
_MODULES: Mapping[str, str] = {
    "torchtitan": TORCHTITAN,
    "axolotl": AXOLOTL,
    "llamafactory": LLAMAFACTORY,
    "nemo": NEMO,
    "pretrain_gpt": MEGATRON,
    "pretrain_mamba": MEGATRON,
    "pretrain_bert": MEGATRON,
    "run_recipe": NEMO,
}
"""Tools by a part of the name of the script or module."""
_DIRECTIVES: Mapping[str, str] = {
    "nodes": "nodes",
    "N": "nodes",
    "gpus-per-node": "devices_per_node",
    "gres": "devices_per_node",
    "gpus": "world_size",
    "G": "world_size",
}
_RESOURCE = "gpu"
"""Slurm's name of the resource."""
_IGNORED_STARTS = re.compile(
    r"rdzv.*|max_restarts|master.*|node_rank|machine_rank|main_process.*|standalone|monitor.*|log_dir|tee|redirects|role|module|"
    r"same_network|dynamo.*|multi_gpu|use_.*|no_.*|hostfile|include|exclude|launcher.*|force_multi|bind_.*|ssh.*|start_method|config"
)
_NETWORK = ("model", "model_name", "model_name_or_path", "pretrained_model_name_or_path", "model_id", "hf_model", "base_model")


def read_commands(source: Source) -> tuple[Reading, dict[str, str]]:
    """Return what a script or a command line states, and the texts that it writes into files.

    Raises:
        UserError: no command of it starts a training.
    """
    script = read_script(source.text)
    directives = script.directives
    found, given = Reading(), dict[str, str]()
    _slurm(directives, source, found, given)
    script = read_script(source.text, given)
    starts = [command for words in script.commands if (command := _start(words))]
    bare = [] if starts else words_of(source.text)
    if bare and (bare[0].startswith("--") or all(re.match(r"[\w.+]+=", word) for word in bare)):
        starts = [("", bare)]
    if starts:
        found.add(_training(*starts[-1], source))
    elif not directives:
        raise UserError(f"{source.name} starts no training", f"give a script with one of {', '.join(STARTERS)}")
    return found, script.files


def _slurm(directives: Sequence[str], source: Source, found: Reading, given: dict[str, str]) -> None:
    """Read the directives of Slurm, and the variables that it sets by them."""
    for name, value in _options(directives):
        key = name if len(name) == 1 else name.replace("_", "-")
        stated = _DIRECTIVES.get(key)
        if stated is None:
            if key == "constraint" and isinstance(value, str):
                add_device(value, source, f"--constraint={value}", found)
            found.ignored.append(f"{source.name}: --{name}")
            continue
        words = f"--{name}={value}"
        kind, many = _counted(str(value))
        if many is None:
            if _RESOURCE in str(value) or key != "gres":
                found.unknown.append(f"{source.name}: {words}")
            continue
        found.understood += 1
        found.facts.append(StatedFact(stated, many, source.name, words))
        if kind:
            add_device(kind, source, words, found)
        if stated == "nodes":
            given |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(many))
        elif stated == "devices_per_node":
            given |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(many))
    if {"SLURM_NNODES", "SLURM_GPUS_ON_NODE"} <= given.keys():
        given["SLURM_NTASKS"] = str(int(given["SLURM_NNODES"]) * int(given["SLURM_GPUS_ON_NODE"]))


def _counted(text: str) -> tuple[str, int | None]:
    """Return the kind and the number of ``8``, ``h100:8`` or ``gpu:h100:8``; no number if it has none."""
    *kinds, last = text.split("(")[0].split(":")
    names = [kind for kind in kinds if kind.casefold() != _RESOURCE]
    first = last.split("-")[0]
    if not first.isdecimal() or (kinds and _RESOURCE not in kinds[0].casefold() and len(kinds) > 1):
        return "", None
    return (names[-1] if names else ""), int(first)


def add_device(name: str, source: Source, words: str, found: Reading) -> None:
    """Add a device, if the catalogue has it."""
    try:
        device = hardware.device(name.replace("_", " ")).name
    except UserError:
        if "constraint" not in words:
            found.unknown.append(f"{source.name}: the device {name!r} of {words}")
        return
    found.facts.append(StatedFact("device", device, source.name, words))


def _start(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the program that starts a training and its words; None for other commands."""
    for number, word in enumerate(words):
        name = PurePath(word).name
        if name not in STARTERS:
            continue
        rest = list(words[number + 1 :])
        if name in ("python", "python3"):
            inner = next((i for i, each in enumerate(rest) if PurePath(each).name in STARTERS and i < 3), None)
            if inner is not None and PurePath(rest[inner]).name not in ("python", "python3"):
                continue
            if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
                return "torchrun", rest[2:]
            if not any(each.endswith(".py") or each == "-m" for each in rest):
                continue
        return name, rest
    return None


def _training(starter: str, words: Sequence[str], source: Source) -> Reading:
    """Return what a starter's options and its script's arguments state."""
    found = Reading()
    place, name = _script(words) if starter else (-1, "")
    before, after = words[: max(place, 0)], words[place + 1 :]
    if starter in ("llamafactory-cli", "axolotl"):
        before, after = [], list(words)
    for key, value in _options(before):
        _of_starter(starter, key, value, source, found)
    options = list(_options(after))
    tool = STARTERS[starter] if STARTERS.get(starter) in (LLAMAFACTORY, AXOLOTL) else ""
    tool = tool or next((tool for part, tool in _MODULES.items() if part in name.casefold()), "")
    paths = [tuple(folded(key).split(".")) for key, _ in options]
    tool = tool or tool_of(paths) or HF
    links = [word for word in after if re.search(r"\.(ya?ml|toml|json)$", word) and not word.startswith("-")]
    known = {str(value) for _, value in options}
    found.links += [(link, source) for link in links if link not in known]
    found.add(read_options(tool, options, source))
    if starter == "deepspeed":
        words_of = "deepspeed starts it"
        found.facts.append(StatedFact("framework", DEEPSPEED, source.name, words_of, 3, assumed=True))
    return found


def _script(words: Sequence[str]) -> tuple[int, str]:
    """Return the place and the name of the script or of the module that is started."""
    for number, word in enumerate(words):
        if word in ("-m", "--module") and number + 1 < len(words):
            return number + 1, words[number + 1]
        if word.endswith(".py"):
            return number, word
    valued = True
    for number, word in enumerate(words):
        if not word.startswith("-") and valued:
            return (number, word) if "." in word else (-1, "")
        valued = not word.startswith("-") or "=" in word
    return -1, ""


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command with their values: True for a flag, a text of several words joined by spaces."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or re.fullmatch(r"-[\d.]+", word):
            if override := re.match(r"^\+{0,2}([A-Za-z_][\w.]*)=(.*)$", word):
                yield override[1], override[2]
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            yield name, value
            continue
        values: list[str] = []
        while rest and (not rest[0].startswith("-") or re.fullmatch(r"-[\d.]+(e-?\d+)?", rest[0])):
            if re.match(r"^\+{0,2}[A-Za-z_][\w.]*\.[\w.]+=", rest[0]):
                break  # an override of Hydra
            values.append(rest.pop(0))
        yield name, " ".join(values) if values else True


def _of_starter(starter: str, key: str, value: Any, source: Source, found: Reading) -> None:
    """Add what an option of the starter states."""
    name = folded(key)
    words = f"--{key}" if value is True else f"--{key} {value}"
    if name in LINKS and value is not True:
        found.links.append((str(value), source))
        return
    if UNKNOWN in str(value):
        if name in ("nnodes", "nproc_per_node", "num_processes", "num_machines", "num_gpus", "num_nodes"):
            found.unknown.append(f"{source.name}: --{key}, whose value the script does not set")
        return
    if starter == "deepspeed" and name == "num_gpus":
        name = "nproc_per_node"
    entry = looked_up(ACCELERATE, [name]) if starter == "accelerate" else None
    entry = entry or typed_names().get(name)
    if entry is None:
        kept = found.ignored if _IGNORED_STARTS.fullmatch(name) else found.unknown
        kept.append(f"{source.name}: {words}")
        return
    if name == "nnodes" and ":" in str(value):
        value = str(value).rpartition(":")[2]
    try:
        found.facts += facts_of(entry, value, source.name, words)
        found.understood += 1
    except UserError:
        found.unknown.append(f"{source.name}: {words}")


def read_options(tool: str, options: Sequence[tuple[str, Any]], source: Source) -> Reading:
    """Return what the arguments of a script state, as a tool reads them, else as people write them."""
    found = Reading()
    for key, value in options:
        name, words = folded(key), f"--{key}" if value is True else f"--{key} {value}"
        path = tuple(name.split("."))
        if name in LINKS:
            found.links += [] if value is True else [(str(value), source)]
            continue
        if UNKNOWN in str(value):
            if looked_up(tool, path) is not None:
                found.unknown.append(f"{source.name}: --{key}, whose value the script does not set")
            else:
                found.ignored.append(f"{source.name}: --{key}")
            continue
        entry = looked_up(tool, path) or typed_names().get(name) or typed_names().get(path[-1])
        if entry is None and tool_keys()[tool].ignores(path):
            found.ignored.append(f"{source.name}: --{key}")
            continue
        if entry is None:
            found.unknown.append(f"{source.name}: --{key}")
            continue
        given = "true" if value is True else value
        try:
            found.facts += facts_of(entry, given, source.name, words)
            found.understood += 1
        except UserError:
            found.unknown.append(f"{source.name}: {words}")
    if tool == MEGATRON:
        model = megatron_network({folded(key): value for key, value in options}, source.name)
        found.facts += model
    if tool != HF or any(fact.name == "micro_batch_size" for fact in found.facts):
        add_defaults(tool, found, source)
    return found
