"""``paceline explain``: the bottlenecks of a training step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.cli.answer_head import with_head
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments
from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.arguments.report_argument import add_report_argument, with_report
from paceline.cli.guide.sections import section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.planning.compare.explain import explain
from paceline.reporting.pages import answer_page
from paceline.reporting.text.planning_text import explain_screen

EXAMPLE = """example:
  paceline explain resnet-50 --device V100 --nodes 8 --network 10Gb/s --global-batch 1024"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline explain``."""
    answers = section(parser, "answer")
    parser.runs(_explain, EXAMPLE)
    add_prediction_arguments(parser)
    run = "a run directory; its measured step is shown next to the prediction"
    answers.add_argument("--run", dest="beside", metavar="DIR", default="", help=run)
    answers.add_argument(
        "--trace", metavar="FILE", default="", help="write the timeline as a Chrome trace, which Perfetto opens"
    )
    add_report_argument(parser)


def _explain(o: argparse.Namespace) -> Answer:
    inputs = prediction_inputs(o)
    model = predictor(o, o.loader, o.worker_times)
    explanation = explain(*inputs, o.beside, predictor=model)
    if o.trace:
        try:
            Path(o.trace).parent.mkdir(parents=True, exist_ok=True)
            Path(o.trace).write_text(json.dumps(explanation.trace()), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {o.trace}: {error.strerror or error}", "choose another file with --trace") from error
    data, screen = with_head(o, inputs, model, explanation.prediction, explanation.to_json(), explain_screen(explanation))
    return data, with_report(screen, o.report, lambda: answer_page.explained_page(explanation, would_fit=data["would_fit"]))
