"""``paceline memory``: show the memory of a training step over time, in the terminal, as a picture and for PyTorch's viewer."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline import memory_snapshot
from paceline.cli.answer_head import with_head, with_smaller
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments
from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.arguments.report_argument import add_report_argument, with_report
from paceline.cli.guide.sections import section
from paceline.cli.parser import Answer, Parser
from paceline.memory_timeline import MemoryTimeline
from paceline.prediction import Prediction
from paceline.reporting.pages.memory_page import memory_page
from paceline.reporting.text.memory_text import memory_screen
from paceline.reporting.text.screen import Screen
from paceline.reporting.text.table import run_title

EXAMPLE = """example:
  paceline memory llama-3-8b --cluster "8 H100" --sharding zero3 --global-batch 16 --snapshot memory.pickle"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline memory``."""
    answers = section(parser, "answer")
    parser.runs(_memory, EXAMPLE)
    add_prediction_arguments(parser)
    answers.add_argument("--rank", metavar="N", type=int, help="show this rank (default: the fullest)")
    answers.add_argument("--picture", metavar="FILE", default="", help="also write a figure into FILE.svg or FILE.png")
    snapshot = "also write a snapshot that pytorch.org/memory_viz opens: a device for each stage, or --rank's alone"
    answers.add_argument("--snapshot", metavar="FILE", default="", help=snapshot)
    add_report_argument(parser)


def _memory(o: argparse.Namespace) -> Answer:
    inputs, model = prediction_inputs(o), predictor(o, o.loader, o.worker_times)
    prediction = model.step(*inputs)
    shown = prediction.memory_timeline(o.rank)
    screen = memory_screen(prediction, prediction.memory_timelines, shown)
    data = {
        **{name: prediction.to_json()[name] for name in ("workload", "strategy", "cluster", "memory_bytes", "memory", "fit")},
        "shown": shown.to_json(),
        "timelines": [t.to_json(points=0) for t in prediction.memory_timelines],
    }
    data, screen = with_smaller(o, inputs, model, prediction, data, screen)
    data, screen = with_head(o, inputs, model, prediction, data, screen)
    screen = _written(o, prediction, shown, screen)
    return data, with_report(screen, o.report, lambda: memory_page(prediction, prediction.memory_timelines, shown))


def _written(o: argparse.Namespace, prediction: Prediction, shown: MemoryTimeline, screen: Screen) -> Screen:
    """Write the requested files, and add their places to the answer. Raises UserError."""
    if o.picture:
        from paceline.reporting.figures.memory_figures import write_picture

        others = prediction.memory_timelines if o.rank is None else (shown,)
        screen = screen.writing(f"picture: {write_picture(others, shown, run_title(prediction), o.picture)}")
    if o.snapshot:
        devices = prediction.memory_timelines if o.rank is None else (shown,)
        file: Path = memory_snapshot.write(devices, o.snapshot)
        screen = screen.writing(f"snapshot: {file} (open it at https://pytorch.org/memory_viz)")
    return screen
