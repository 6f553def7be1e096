"""The question in other forms: commands, Python, and files for other software."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, emitted
from paceline.serve.controls import by_option, controls
from paceline.serve.network_text import network_text
from paceline.serve.question import Question
from paceline.serve.selection import UPLOADED, Selection, value
from paceline.strategy.strategy import CHOICES

OF_RUN = ("samples", "tokens", "by", "budget", "price")
"""Options that ``ask`` takes and ``predict`` does not."""
_JOINED = ("transport", *OF_RUN)
_STATED = ("seq-len", "lora", "micro-batch-size", "framework", "attention", "compile")


@dataclass(frozen=True, slots=True)
class Copy:
    """Text to copy, with its title. ``group``: part of the menu. ``missing``: why there is no text."""

    title: str
    text: str
    missing: str = ""
    group: str = "For your software"


def copies(asked: Question) -> list[Copy]:
    """Return the question as commands and in Python, and the strategy as options of other software."""
    texts = [Copy("Command, one step", command(asked.chosen), group="Paceline")]
    texts.append(Copy("Command, the whole run", run_command(asked), group="Paceline"))
    texts.append(Copy("Python", python(asked), group="Paceline"))
    samples = asked.target.total
    for target in TARGETS:
        try:
            job = EmittedJob(target, asked.strategy, asked.workload, asked.cluster, samples=samples, price=asked.price)
            texts.append(Copy(target, emitted(job).text))
        except UserError as error:
            texts.append(Copy(target, "", str(error)))
    return texts


def command(chosen: Selection) -> str:
    """Return the step as a command line. An uploaded configuration is named as its file."""
    words = ["paceline", "predict", _model(chosen)]
    for option, text in chosen.items():
        if option != "workload" and option not in _JOINED:
            words += by_option()[option].words(_whole(chosen, option, text))
    return shlex.join(words)


def run_command(asked: Question) -> str:
    """Return the whole run as a command line, with the choices that ``ask`` takes."""
    chosen, cluster = asked.chosen, asked.cluster
    words = ["paceline", "ask", _model(chosen), "--on", f"{_size(chosen)} {chosen['device']}"]
    if cluster.num_nodes > 1 and (between := network_text(chosen)):
        words += ["--network", between]
    for option, text in chosen.items():
        control = by_option()[option]
        item = CHOICES.get(control.keyword)
        taken = item.plan is not None and item.plan.option if item else option in (*OF_RUN, *_STATED)
        if taken:
            words += control.words(text)
    return shlex.join(words)


def python(asked: Question) -> str:
    """Return the step in Python."""
    chosen = asked.chosen
    model = repr(_model(chosen))
    if chosen["workload"].startswith(UPLOADED):
        length = f", {value(chosen, 'seq-len')}" if "seq-len" in chosen else ""
        model = f"paceline.Workload.from_config({model}{length})"
    arguments = [model, repr(f"{_size(chosen)} {chosen['device']}"), *_arguments(asked, "(" in model)]
    return f"import paceline\n\nprint(paceline.predict({', '.join(arguments)}))"


def _arguments(asked: Question, made: bool) -> Iterator[str]:
    """Yield the arguments by name. ``made``: whether the workload has its length already."""
    chosen = asked.chosen
    if between := network_text(chosen):
        yield f"network={between!r}"
    if "seq-len" in chosen and not made:
        yield f"seq_len={value(chosen, 'seq-len')!r}"
    if "lora" in chosen:
        yield f"lora={chosen['lora']!r}"
    settled = ("global_batch_size", "grad_accum_steps") if "micro-batch-size" in chosen else ()
    for control in controls():
        if control.keyword in settled:
            yield f"{control.keyword}={asked.strategy.choice(control.keyword)!r}"
        elif control.keyword and control.option in chosen:
            yield f"{control.keyword}={value(chosen, control.option)!r}"
    software = {name: value(chosen, name) for name in ("framework", "attention", "compile") if name in chosen}
    if software:
        given = ", ".join(f"{name}={each!r}" for name, each in software.items())
        yield f"predictor=paceline.Predictor({given})"


def _whole(chosen: Selection, option: str, text: str) -> str:
    return network_text(chosen) or text if option == "network" else text


def _size(chosen: Selection) -> str:
    return f"{chosen.get('nodes', '1')}x{chosen.get('devices-per-node', '1')}"


def _model(chosen: Selection) -> str:
    return "config.json" if chosen["workload"].startswith(UPLOADED) else chosen["workload"]
