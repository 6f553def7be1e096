"""The command line. Numbers go to stdout, progress and errors to stderr; a user's mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from typing import Any, NoReturn

from paceline.errors import UserError, unknown

PREDICT_EXAMPLE = """example:
  paceline predict resnet-50 --device A100 --devices-per-node 8 --nodes 4 --network 100Gb/s --global-batch 2048"""
TRAIN_EXAMPLE = """example:
  paceline train --model lenet5 --data digits --workers 4 --compression terngrad --epochs 10 --out runs/mine"""

BENCH_EXAMPLE = """example:
  paceline bench codec --codec ternary bf16 --size 100MB --threads 1"""

Answer = tuple[dict[str, Any] | list[dict[str, Any]], str]
"""What a command found, as JSON (a list: one object a line) and as text."""


class UsageError(UserError):
    """What argparse refused; ``parser`` is the command's."""

    def __init__(self, message: str, parser: Parser) -> None:
        self.parser = parser
        super().__init__(f"{parser.prog}: {message}", f"see {parser.prog} --help")


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line that name the nearest legal thing."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError where argparse would print its usage and exit."""
        wrong = re.search(r"invalid choice: '([^']*)'.*\(choose from (.*)\)", message)
        if wrong:
            raise unknown("command", wrong[1], [name.strip("' ") for name in wrong[2].split(",")], f"{self.prog} --help")
        raise UsageError(message, self)

    def options(self) -> list[str]:
        """Every option that this command takes."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


def build_parser() -> Parser:
    """The whole command line, frozen by a test."""
    parser = Parser(
        prog="paceline",
        description="Know how fast a training job will run before the hardware is there; then make it run that fast.",
        epilog=PREDICT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    predict = _command(commands, "predict", "time, bytes, memory, bottleneck of a training step", PREDICT_EXAMPLE, _predict)
    from paceline.planning.options import (
        add_asynchronous_arguments,
        add_explain,
        add_job_arguments,
        add_plan,
        add_report_argument,
        add_whatif,
    )
    from paceline.training.options import add_arguments

    add_job_arguments(predict)
    add_asynchronous_arguments(predict)
    add_report_argument(predict)
    add_plan(commands, _command, _plan)
    add_whatif(commands, _command, _whatif)
    add_explain(commands, _command, _explain)

    train = _command(commands, "train", "train on local workers, predicted before and measured after", TRAIN_EXAMPLE, _train)
    train.add_argument("--workers", metavar="N", type=int, help="processes on this machine (default 2)")
    add_arguments(train)

    hardware = _group(commands, "hardware", "what is known about devices and links", "example:\n  paceline hardware list")
    _command(hardware, "list", "every device and link", "example:\n  paceline hardware list", _hardware_list)
    show = _command(hardware, "show", "one of them, with sources", "example:\n  paceline hardware show H100", _hardware_show)
    show.add_argument("name", metavar="NAME")
    probe = _command(
        hardware, "probe", "measure this machine", "example:\n  paceline hardware probe --workers 4", _hardware_probe
    )
    probe.add_argument("--workers", metavar="N", type=int, default=2, help="ranks measured at once (default 2)")

    workload = _group(commands, "workload", "what is known about networks", "example:\n  paceline workload show alexnet")
    _command(workload, "list", "every named network", "example:\n  paceline workload list", _workload_list)
    show = _command(workload, "show", "a layer table", "example:\n  paceline workload show alexnet", _workload_show)
    show.add_argument("name", metavar="NAME|module:function")

    bench = _group(commands, "bench", "measure Paceline itself on this machine", BENCH_EXAMPLE)
    codec = _command(bench, "codec", "speed of the codecs beside memcpy", BENCH_EXAMPLE, _bench_codec, "one JSON object a line")
    codec.add_argument("--size", metavar="BYTES", default="100MB", help="of the fp32 tensor (default 100MB)")
    codec.add_argument("--codec", metavar="NAME", nargs="+", action="extend", help="which codecs (default all)")
    codec.add_argument("--backend", metavar="B", default="", help="reference, native or triton (default the fastest here)")
    codec.add_argument("--threads", metavar="N", type=int, help="of C++ kernels (default OMP_NUM_THREADS, else all cores)")

    example = "example:\n  paceline bench optimizer --network resnet-50 --threads 2"
    help_ = "speed of LARS and LAMB beside memcpy and other people's"
    optimizer = _command(bench, "optimizer", help_, example, _bench_optimizer, "one JSON object a line")
    optimizer.add_argument("--network", metavar="NAME", default="resnet-50", help="whose tensors (default resnet-50)")
    optimizer.add_argument("--optimizer", metavar="NAME", nargs="+", action="extend", help="lars, lamb (default both)")
    optimizer.add_argument("--variant", metavar="V", default="paper", help="which published form (default paper)")
    optimizer.add_argument("--device", metavar="D", default="cpu", help="cpu or cuda (default cpu)")
    optimizer.add_argument("--threads", metavar="N", type=int, help="on the processor (default torch's)")

    report = _command(
        commands, "report", "write report.html of a run directory", "example:\n  paceline report runs/demo", _report
    )
    report.add_argument("directory", metavar="DIR")

    from paceline.validation.command import add_validate

    add_validate(commands, _command, _validate)

    from paceline.lab.command import EXAMPLE, add_lab

    add_lab(_group(commands, "lab", "an emulated cluster on this machine", EXAMPLE), _command)
    return parser


def _group(commands: Any, name: str, text: str, example: str) -> Any:
    group = _parser(commands, name, text, example)
    return group.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)


def _command(
    commands: Any,
    name: str,
    text: str,
    example: str,
    run: Callable[[argparse.Namespace], Answer],
    prints: str = "one JSON object",
) -> Parser:
    parser = _parser(commands, name, text, example)
    parser.add_argument("--json", action="store_true", help=f"print {prints} on stdout")
    parser.set_defaults(run=run)
    return parser


def _parser(commands: Any, name: str, text: str, example: str) -> Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser: Parser = commands.add_parser(
        name, help=text, description=text, epilog=example, formatter_class=style, allow_abbrev=False
    )
    parser.set_defaults(parser=parser)
    return parser


def _predict(o: argparse.Namespace) -> Answer:
    from paceline.planning import explain
    from paceline.planning.options import asynchronous_answer, job, predictor
    from paceline.reporting import prediction_text

    if o.asynchronous:
        from paceline.reporting.asynchronous import asynchronous_text

        found = asynchronous_answer(o)
        return found.to_json(), _reported(o.report, "asynchronous_page", lambda: found, asynchronous_text(found))
    asked, model = job(o), predictor(o)
    prediction = model.step(*asked)
    text = _reported(
        o.report, "explained_page", lambda: explain(*asked, predictor=model), prediction_text(prediction), "prediction"
    )
    return prediction.to_json(), text


def _plan(o: argparse.Namespace) -> Answer:
    from paceline.planning.options import plan_answer
    from paceline.reporting.planning import plan_text

    plan = plan_answer(o)
    return plan.to_json(), _reported(o.report, "plan_page", lambda: plan, plan_text(plan))


def _whatif(o: argparse.Namespace) -> Answer:
    from paceline.planning.options import whatif_answer
    from paceline.reporting.planning import whatif_text

    found = whatif_answer(o)
    return found.to_json(), _reported(o.report, "whatif_page", lambda: found, whatif_text(found))


def _explain(o: argparse.Namespace) -> Answer:
    from paceline.planning.options import explain_answer
    from paceline.reporting.planning import explain_text

    found = explain_answer(o)
    return found.to_json(), _reported(o.report, "explained_page", lambda: found, explain_text(found))


def _reported(where: str, page: str, answer: Callable[[], Any], text: str, *more: str) -> str:
    """The text; where a report is asked for, it is written, and its place stands below."""
    if not where:
        return text
    from paceline.reporting import answers

    return f"{text.rstrip()}\nreport: {answers.write(getattr(answers, page)(answer(), *more), where)}"


def _train(o: argparse.Namespace) -> Answer:
    from paceline.reporting import learning_text, render, write_report
    from paceline.rundir import RunDir
    from paceline.training.options import job_from
    from paceline.training.train import train_job

    job = job_from(o)
    record, prediction = train_job(job)
    write_report(job.out)
    data = {**record.to_json(), "predicted": prediction.to_json(), "out": job.out}
    name = record.strategy["compression"]
    contents = RunDir(job.out).read(partial=True)
    said = learning_text(record, contents.trust.get(list(contents.records)[-1]))  # the last one is this run
    return data, f"{render({name: prediction}, {name: record})}\n{said}\nreport: {job.out}/report.html"


def _hardware_list(o: argparse.Namespace) -> Answer:
    from paceline import hardware
    from paceline.reporting.catalogue import hardware_text

    data = {"devices": [asdict(d) for d in hardware.devices()], "links": [asdict(x) for x in hardware.links()]}
    return data, hardware_text(hardware.devices(), hardware.links())


def _hardware_show(o: argparse.Namespace) -> Answer:
    from paceline import hardware
    from paceline.hardware.prices import listings
    from paceline.reporting.catalogue import device_text, link_text

    found = hardware.find(o.name)
    if isinstance(found, hardware.Link):
        return asdict(found), link_text(found)
    return {**asdict(found), "prices": [asdict(one) for one in listings(found.name)]}, device_text(found)


def _hardware_probe(o: argparse.Namespace) -> Answer:
    from paceline.reporting.catalogue import device_text, link_text
    from paceline.training.launcher import probe

    machines = probe(o.workers)
    text = f"{device_text(machines.device)}\n\n{link_text(machines.network)}"
    return asdict(machines), text


def _workload_list(o: argparse.Namespace) -> Answer:
    from paceline.reporting.catalogue import workloads_text
    from paceline.workload import names, workload

    tables = [workload(name) for name in names()]
    keys = ("name", "sample", "source", "num_parameters", "flops_forward", "flops_per_sample", "activation_bytes")
    return {"workloads": [{k: getattr(w, k) for k in keys} for w in tables]}, workloads_text(tables)


def _workload_show(o: argparse.Namespace) -> Answer:
    from paceline.reporting.catalogue import workload_text
    from paceline.workload import workload

    table = workload(o.name)
    return asdict(table), workload_text(table)


def _bench_codec(o: argparse.Namespace) -> Answer:
    from paceline.codecs.bench import command

    return command(o)


def _bench_optimizer(o: argparse.Namespace) -> Answer:
    from paceline.training.optimizers.bench import command

    return command(o)


def _report(o: argparse.Namespace) -> Answer:
    from paceline.reporting import write_report

    path = write_report(o.directory)
    return {"report": str(path)}, f"report: {path}"


def _validate(o: argparse.Namespace) -> Answer:
    from paceline.reporting.validation import validation_text
    from paceline.validation.command import answer

    data = answer(o).to_json()
    return data, validation_text(data)


def _strict(value: Any) -> Any:
    """The same without what JSON has no number for: NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options. Raises UserError; a misspelt option is named before what is then missing."""
    try:
        options, rest = parser.parse_known_args(arguments)
        command: Parser = getattr(options, "parser", parser)
    except UsageError as error:
        command = error.parser
        own = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
        rest = [a for a in own if a.startswith("--") and a.partition("=")[0] not in command.options()]
        if not rest:
            raise
    if not rest:
        return options
    option = next((a.partition("=")[0] for a in rest if a.startswith("-")), "")
    if option:
        wrong = unknown("option", option, command.options(), f"{command.prog} --help")
        hint = command.get_default("hint")
        raise UserError(wrong.message, f"{wrong.fix}; {hint}" if hint else wrong.fix)
    raise UsageError(f"unexpected argument {rest[0]!r}", command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit code: 0 done, 2 a user's mistake, 1 or a worker's own code when a worker failed."""
    parser = build_parser()
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show µ gets a question mark
    try:
        options = _parse(parser, given)
        if options.version:
            from paceline import __version__

            print(f"paceline {__version__}")
            return 0
        if not hasattr(options, "run"):
            getattr(options, "parser", parser).print_help()
            return 0
        streams = getattr(options, "streams", False) and not options.json
        # what a network of the user's prints is no part of the answer, unless the command is there to show it
        with nullcontext() if streams else redirect_stdout(sys.stderr):
            data, text = options.run(options)
        if not streams:
            objects = data if isinstance(data, list) else [data]
            lines = [json.dumps(_strict(one), allow_nan=False) for one in objects] if options.json else [text.rstrip("\n")]
            print("\n".join(lines), flush=True)
        return 0 if isinstance(data, list) else int(data.get("exit_code", 0))
    except UserError as error:
        print(f"paceline: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "sklearn"):
            raise
        print(f"paceline: this needs {error.name}; pip install 'paceline[train]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = "; a checkpoint of the last whole epoch is kept, go on with --resume" if "train" in given[:1] else ""
        print(f"paceline: interrupted{kept}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone; nor is there one for the flush at the end
        return 0
    except RuntimeError as error:
        from paceline.lab import HostFailed
        from paceline.training.launcher import WorkerFailed

        if not isinstance(error, WorkerFailed | HostFailed):
            raise
        print(f"paceline: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
