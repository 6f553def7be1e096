"""Options and answer of ``paceline diagnose``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from paceline.cli.answer_head import taken
from paceline.cli.arguments.choice_arguments import PREDICTED
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments
from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.hardware import device
from paceline.planning.diagnose.diagnose import diagnose, parse_also
from paceline.planning.diagnose.evidence import SAID, RunFiles, read_files, said_evidence, state_evidence
from paceline.planning.diagnose.measured import EXAMPLES, parse_speed
from paceline.planning.diagnose.question import RunQuestion
from paceline.reporting.text.diagnose_text import diagnosis_screen

OF_SOFTWARE = ("attention", "framework", "compile")
"""Options about software that causes contradict."""
EXAMPLE = """example:
  paceline diagnose gpt2 --cluster '2x8 A100, 8x200Gb/s InfiniBand' --global-batch 128 --measured '1.4 s/step'"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline diagnose``."""
    measured = section(parser, "changes")
    parser.runs(_diagnose, EXAMPLE)
    add_prediction_arguments(parser)
    speed = f"speed of the run, or its log: {EXAMPLES.replace('%', '%%')}"
    common(measured.add_argument("--measured", metavar="SPEED", default="", help=speed))
    logs = "log, trace, export or event file of the run, log of NCCL_DEBUG=INFO, output of nvidia-smi; may be repeated"
    common(measured.add_argument("--log", metavar="FILE", action="append", default=[], help=logs))
    seen = f"what you saw in words: {SAID.replace('%', '%%')}; may be repeated"
    measured.add_argument("--seen", metavar="WORDS", action="append", default=[], help=seen)
    also = "another measurement of it with changed options, 'nodes=1, global-batch=8: 0.31 s'; may be repeated"
    measured.add_argument("--also", metavar="CHANGES:SPEED", action="append", default=[], help=also)


def _diagnose(o: argparse.Namespace) -> Answer:
    if o.measured and Path(o.measured).is_file():
        o.log, o.measured = [*o.log, o.measured], ""
    files = read_files(o.log, o.global_batch, o.seq_len) if o.log else RunFiles((), ())
    speed, also = parse_speed(o.measured) if o.measured else files.speed, [parse_also(text) for text in o.also]
    if speed is None:
        raise UserError("no measured speed is given", f"give --log of the run, or --measured {EXAMPLES}")
    notes = list(_sizes(o, files))
    inputs = prediction_inputs(o)
    _same_batch(files, inputs[2].global_batch_size)
    question = RunQuestion(*inputs, predictor(o, o.loader, o.worker_times), _stated(o))
    memory = question.cluster.device.memory.value
    said = [fact for words in o.seen for fact in said_evidence(words)]
    seen = [fact for run in files.runs for fact in state_evidence(run, question.step, memory)]
    found = diagnose(question, speed, also, (*files.evidence, *seen, *said))
    return found.to_json(), diagnosis_screen(found).noting(*notes, *_other_devices(files, question), *taken(o, inputs))


def _other_devices(files: RunFiles, question: RunQuestion) -> Iterator[str]:
    """Yield a sentence if nvidia-smi shows another device than the question."""
    asked = question.cluster.device
    for name in dict.fromkeys(state.name for run in files.runs for state in run.devices if state.name):
        try:
            shown = device(name)
        except UserError:
            continue
        if (shown.architecture, shown.peak_flops) != (asked.architecture, asked.peak_flops):
            yield f"nvidia-smi shows {shown.name}, and the question says {asked.name}: state the device of the run."


def _stated(o: argparse.Namespace) -> frozenset[str]:
    """Return the choices that the options state."""
    places = {item.name: item.dest for item in PREDICTED} | {name: name for name in OF_SOFTWARE}
    return frozenset(name for name, dest in places.items() if getattr(o, dest, None) != o.parser.get_default(dest))


def _same_batch(files: RunFiles, batch: int) -> None:
    """Raise UserError if a log states another global batch than the question."""
    for run in files.runs:
        if run.global_batch and run.global_batch != batch:
            raise UserError(
                f"{run.file} has a global batch of {run.global_batch:,}, and the question one of {batch:,}",
                "state the batch of the run with --global-batch, or give the log of this run",
            )


def _sizes(o: argparse.Namespace, files: RunFiles) -> Iterator[str]:
    """Take the batch and the length of the run's files if the options do not state them. Yields sentences about both."""
    batch = next((run.global_batch for run in files.runs if run.global_batch), None)
    length = next((run.seq_len for run in files.runs if run.seq_len), None)
    if o.global_batch is None and o.micro_batch_size is None and batch:
        o.global_batch = batch
        yield f"Global batch {batch:,}, as the log says."
    if o.seq_len is None and length:
        o.seq_len = length
        yield f"Sequences of {length:,} tokens, as the log says."
    yield from (f"{run.file}: {run.took()}." for run in files.runs)
