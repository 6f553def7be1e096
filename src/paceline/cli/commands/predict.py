"""``paceline predict``: predict a training step, or an asynchronous job, without its hardware."""

from __future__ import annotations

import argparse
from dataclasses import replace

from paceline import hardware
from paceline.cli.answer_head import taken, unfit, with_head
from paceline.cli.arguments.exchange_arguments import named_exchange
from paceline.cli.arguments.failure_arguments import FAILURES, add_failure_arguments, failures_of
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments
from paceline.cli.arguments.prediction_inputs import Inputs, cluster_of, prediction_inputs, predictor
from paceline.cli.arguments.report_argument import add_report_argument, with_report
from paceline.cli.guide.sections import section
from paceline.cli.parser import PREDICT_EXAMPLE, Answer, Parser
from paceline.errors import UserError
from paceline.planning.compare.explain import explain
from paceline.planning.failures.run_goodput import Goodput, run_goodput
from paceline.planning.search.growing_batch import GrowthStage, growth_stages
from paceline.prediction import Prediction
from paceline.prediction.predictor import StepPredictor
from paceline.prediction.transports import figures_by_transport, steps_by_transport
from paceline.reporting import prediction_screen
from paceline.reporting.pages import answer_page
from paceline.reporting.text.critical_batch_text import stage_table
from paceline.reporting.text.screen import GAP, Pair, heading
from paceline.reporting.text.transport_text import with_steps
from paceline.strategy.updates.batch_growth import BatchGrowth


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline predict``."""
    run = section(parser, "run")
    parser.runs(_predict, PREDICT_EXAMPLE)
    add_prediction_arguments(parser)
    text = "asynchronous SGD: workers do not wait for each other; --servers more nodes hold the parameters"
    run.add_argument("--asynchronous", action="store_true", help=text)
    device = "the device that an asynchronous server updates with (default: a device like the workers')"
    run.add_argument("--server-device", metavar="D", help=device)
    grows = "later stages of the global batch, 128@20k,256@80k, as train takes them: the step of each is predicted too"
    section(parser, "learning").add_argument("--batch-growth", metavar="STAGES", default="", help=grows)
    add_failure_arguments(parser)
    add_report_argument(parser)


def _predict(o: argparse.Namespace) -> Answer:
    if o.asynchronous:
        return _predict_asynchronous(o)
    if o.server_device:
        raise UserError("only asynchronous servers are other nodes than the workers'", "leave --server-device out")
    inputs, model = prediction_inputs(o), predictor(o, o.loader, o.worker_times)
    prediction, steps = model.step(*inputs), steps_by_transport(model, *inputs)
    json = {**prediction.to_json(), "by_transport": figures_by_transport(steps)}
    shown = with_steps(prediction_screen(prediction), steps)
    if goodput := _goodput(o, inputs, prediction):
        json["goodput"] = goodput.to_json()
        pairs = (Pair(name, text) for name, text in goodput.pairs())
        blocks = (*shown.answer, GAP, heading("Share of the time whose steps stay:"), *pairs)
        shown = replace(shown, answer=blocks, brief=f"{shown.brief}; {goodput.brief}")
    if stages := _stages(o, inputs, model):
        json["batch_stages"] = [stage.to_json() for stage in stages]
        blocks = (heading("Steps as the batch grows:"), stage_table(stages))
        shown = replace(shown, answer=(*shown.answer, GAP, *blocks))
    data, screen = with_head(o, inputs, model, prediction, json, shown, behind=True)

    def page() -> answer_page.Page:
        return answer_page.explained_page(explain(*inputs, predictor=model), "prediction", data["would_fit"])

    return data, with_report(screen, o.report, page)


def _goodput(o: argparse.Namespace, inputs: Inputs, prediction: Prediction) -> Goodput | None:
    """Return the goodput at the rate of failures that the options state; None without one. Raises UserError."""
    if not o.mtbf:
        given = [name for name in FAILURES if getattr(o, name) is not None]
        if given:
            raise UserError(f"--{given[0].replace('_', '-')} without --mtbf", "give --mtbf 50000h, or leave it out")
        return None
    workload, cluster, strategy = inputs
    return run_goodput(prediction, cluster, strategy.settled(workload, cluster), failures_of(o))


def _stages(o: argparse.Namespace, inputs: Inputs, model: StepPredictor) -> tuple[GrowthStage, ...]:
    """Return the stages of a batch that grows; none without the option. Raises UserError for illegal stages."""
    growth = BatchGrowth.of(o.batch_growth)
    if not growth:
        return ()
    if o.mtbf:
        raise UserError("the goodput of a batch that grows is not predicted", "leave --mtbf out, or predict a stage alone")
    return growth_stages(*inputs, growth, model)


def _predict_asynchronous(o: argparse.Namespace) -> Answer:
    from paceline.planning.compare.asynchronous import predict_asynchronous
    from paceline.reporting.text.asynchronous_text import asynchronous_screen

    if o.mtbf:
        raise UserError("failures of asynchronous workers are not predicted", "leave --mtbf out")
    if o.batch_growth:
        raise UserError("the batch of asynchronous workers does not grow", "leave --batch-growth out")
    if o.worker_times:
        raise UserError("asynchronous workers are simulated with equal times", "leave --worker-times out")
    if o.loader:
        raise UserError("asynchronous workers are simulated without an input pipeline", "leave --loader out")
    server_device = hardware.device(o.server_device) if o.server_device else None
    servers = 1 if o.servers is None else o.servers
    among_workers = min(servers, cluster_of(o).world_size) if (x := named_exchange(o)) and x.has_servers else 1
    inputs = prediction_inputs(o, among_workers)
    prediction = predict_asynchronous(
        *inputs,
        servers,
        server_device=server_device,
        predictor=predictor(o),
        drawn_steps=2,
    )
    screen = asynchronous_screen(prediction).noting(*taken(o, inputs)).missing(*unfit(prediction.worker))
    return prediction.to_json(), with_report(screen, o.report, lambda: answer_page.asynchronous_page(prediction))
