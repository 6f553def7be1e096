"""``paceline slim``: train, export and measure a smaller network that meets a budget."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from paceline.cli.arguments.training_arguments import MODELS, add_recipe_arguments, training_run
from paceline.cli.guide.sections import common
from paceline.cli.parser import Answer, Parser
from paceline.language_record import EQUAL, WIDTHS

EXAMPLE = """example:
  paceline slim lenet5 --data digits --budget speedup=3x --epochs 10 --out runs/slim
  paceline slim FOLDER --text FILE.txt --budget decode=2x --out runs/slim"""
DEFAULT_OUT = "runs/slim"
OVER = "OVER BUDGET"
LANGUAGE = ("text", "context", "prompt", "widths")
"""Options of language models only."""
ALSO_LANGUAGE = (
    *("model", "target", "budget", "threads", "weights", "int8", "predict", "tune_epochs", "distill", "lr", "seed", "out"),
    *("brief", "why", "json"),
    *LANGUAGE,
)
"""Options that a language model takes."""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline slim``."""
    parser.runs(_slim, EXAMPLE, shapes=("brief", "why"))
    parser.set_defaults(own_progress=True, resume="", plan=None, teacher=None)
    parser.add_argument("model", metavar="MODEL", help=f"{MODELS}, or a folder of a language model in Hugging Face's format")
    methods = "auto, ssl (filters, channels, heads), iss (recurrent units), force (low rank), sparse, compact (default auto)"
    common(parser.add_argument("--method", metavar="M", default="auto", help=methods))
    targets = (
        "onnxruntime (default), executorch, litert, torch-compile; tensorrt or coreml: files only, nothing is measured there"
    )
    common(parser.add_argument("--target", metavar="T", default="onnxruntime", help=targets))
    weights = "also int8, int8-blocks or int4, several by commas, int4:block=32:symmetric:accuracy=4; ONNX Runtime only"
    common(parser.add_argument("--weights", metavar="W", default="", help=weights))
    parser.add_argument("--int8", action="store_true", help="the same as --weights int8")
    budgets = (
        "latency=5ms, speedup=3x, size=4MB or accuracy=-1pt (default speedup=2x); "
        "language models: decode=2x or decode=5ms of a token, prefill=2x or prefill=50ms of a prompt, size=20MB"
    )
    common(parser.add_argument("--budget", metavar="B", default="speedup=2x", help=budgets))
    parser.add_argument("--threads", metavar="N", type=int, default=1, help="of the runtime (default 1)")
    text = "of a language model: the text that it is slimmed on, a file in UTF-8; its end is held out"
    common(parser.add_argument("--text", metavar="FILE", default="", help=text))
    context = "of a language model: tokens before a decoded one, and of a window of the text (default 128)"
    parser.add_argument("--context", metavar="N", type=int, default=None, help=context)
    prompt = "of a language model: tokens of the prompt whose prefill is timed (default 128)"
    parser.add_argument("--prompt", metavar="N", type=int, default=None, help=prompt)
    widths = f"of a language model: {', or '.join(f'{name}: {meaning}' for name, meaning in WIDTHS.items())} (default {EQUAL})"
    parser.add_argument("--widths", metavar="W", default="", help=widths)
    predict = "only say what other widths, ranks or sparsities would take; nothing is trained, nothing written"
    common(parser.add_argument("--predict", action="store_true", help=predict))
    sample = "with --predict: one sample, 3x224x224 or tokens:512 (default: the declared input, or a sample of --data)"
    parser.add_argument("--input", metavar="I", default="", help=sample)
    device = (
        "with --predict: a published processor in this machine's place, such as 'Raspberry Pi 4', on --threads of its cores"
    )
    parser.add_argument("--device", metavar="NAME", default="", help=device)
    path = "epochs on the way to the budget (default half of --epochs)"
    parser.add_argument("--path-epochs", metavar="E", type=int, default=None, help=path)
    tune = (
        "epochs of fine-tuning the slimmed network (default half of --epochs; compact: --epochs; "
        "language models: 1, or a part of one, such as 0.25; 0: none)"
    )
    parser.add_argument("--tune-epochs", metavar="E", type=float, default=None, help=tune)
    teacher = "share of the whole network's outputs in the fine-tuning loss, from 0 to 1 (default 0.5)"
    parser.add_argument("--distill", metavar="SHARE", type=float, default=None, help=teacher)
    parser.add_argument("--workers", metavar="N", type=int, help="processes that train on this machine (default 2)")
    add_recipe_arguments(parser)
    there = f"directory of all results; an interrupted run there continues (default {DEFAULT_OUT})"
    parser.add_argument("--out", metavar="DIR", default=DEFAULT_OUT, help=there)
    parser.add_argument("--report", action="store_true", help="also write report.html there")


def _slim(o: argparse.Namespace) -> Answer:
    import sys

    from paceline.edge.slim_data import RANDOM, default_data
    from paceline.edge.slim_prediction import predict
    from paceline.edge.slim_run import DISTILL, SlimRun, missed_budget, slim_network
    from paceline.errors import UserError
    from paceline.hardware.edge import edge_device
    from paceline.reporting.text.slim_text import predicted_screen, slim_screen
    from paceline.slimming.methods.budget import Budget
    from paceline.slimming.methods.weight_forms import INT8, parse_weights

    if is_language_model(o.model):
        return _slim_language(o)
    if named := next((name for name in LANGUAGE if getattr(o, name)), ""):
        raise UserError(f"`{named}` for {o.model}, which is no folder with config.json", "give one, or leave the option out")
    if o.device and not o.predict:
        raise UserError("`device` without `predict`", "add `predict`: nothing can be measured on a device that is not here")
    if o.device and (o.weights or o.int8):
        raise UserError(
            "`weights` with `device`", "leave one out: no times of fewer bits on other processors are published here"
        )
    if o.input and (o.data or not o.predict):
        fix = "give one of them" if o.predict else "add `predict`; a run takes its samples from `data`"
        raise UserError(f"`input` {'with `data`' if o.predict else 'without `predict`'}", fix)
    device = edge_device(o.device) if o.device else None
    share = DISTILL if o.distill is None else o.distill
    random = f"{RANDOM}:{o.input}" if o.input else RANDOM
    data = o.data or (random if o.predict else default_data(o.model))
    given = argparse.Namespace(**{**vars(o), "distill": None, "data": data})
    run = SlimRun(
        training=replace(training_run(given), out=str(Path(o.out))),
        budget=Budget.parse(o.budget),
        method=o.method,
        target=o.target,
        threads=o.threads,
        path_epochs=_whole(o.path_epochs, "path-epochs"),
        tune_epochs=_whole(o.tune_epochs, "tune-epochs"),
        distill=share,
        weights=tuple(dict.fromkeys((*parse_weights(o.weights), *(INT8,) * o.int8))),
    )
    if o.predict:
        prediction = predict(run, device)
        missed = prediction.goal is not None and bool(prediction.rows) and prediction.meets is None
        return prediction.to_json(), predicted_screen(prediction).missing(*(OVER,) * missed)
    record = slim_network(run, lambda words: print(f"slim: {words}", file=sys.stderr, flush=True))
    answer, files = {**record.to_json(), "out": o.out}, [f"slimmed network: {o.out}/{', '.join(record.files)}"]
    if o.report:
        from paceline.reporting.pages.slim_page import write_page

        answer["report"] = str(write_page(record, o.out))
        files.append(f"report: {answer['report']}")
    return answer, slim_screen(record).writing(*files).missing(*(OVER,) * missed_budget(run.budget, record))


def _whole(epochs: float | None, option: str) -> int:
    """Return whole epochs, 0 for the default. Raises UserError for a part of one or for none."""
    from paceline.errors import UserError

    if epochs is None:
        return 0
    if not float(epochs).is_integer():
        raise UserError(f"{epochs:g} epochs of tuning", "give a whole number; language models alone take a part of an epoch")
    if not epochs:
        raise UserError(f"--{option} 0", "give 1 or more, or leave it out; language models alone take 0 epochs of tuning")
    return int(epochs)


def is_language_model(model: str) -> bool:
    """Return whether MODEL is a folder in Hugging Face's format."""
    return (Path(model) / "config.json").is_file()


def _slim_language(o: argparse.Namespace) -> Answer:
    import sys

    from paceline.edge.language_run import slim_language
    from paceline.edge.language_settings import EPOCHS, LanguageRun
    from paceline.errors import UserError
    from paceline.reporting.text.language_text import language_screen
    from paceline.slimming.methods.budget import Budget
    from paceline.slimming.methods.weight_forms import INT8, parse_weights

    stated = [action.dest for action in o.parser._actions if getattr(o, action.dest, action.default) != action.default]
    if other := next((name for name in stated if name not in ALSO_LANGUAGE), ""):
        takes = ", ".join(f"--{name.replace('_', '-')}" for name in ALSO_LANGUAGE[1:])
        raise UserError(f"`{other}` for the language model {o.model}", f"leave it out; language models take {takes}")
    if not o.text:
        raise UserError(f"no text for the language model {o.model}", "give --text FILE")
    given = {"context": o.context, "prompt": o.prompt, "distill": o.distill, "lr": o.lr, "seed": o.seed}
    run = LanguageRun(
        model=o.model,
        text=o.text,
        budget=Budget.parse(o.budget),
        out=o.out,
        threads=o.threads,
        epochs=0 if o.predict else EPOCHS if o.tune_epochs is None else o.tune_epochs,
        writes=not o.predict,
        widths=o.widths,
        weights=tuple(dict.fromkeys((*parse_weights(o.weights), *(INT8,) * o.int8))) or None,
        target=o.target,
        **{name: value for name, value in given.items() if value is not None},
    )
    record = slim_language(run, lambda words: print(f"slim: {words}", file=sys.stderr, flush=True))
    over = record.best is None
    files = (f"files: {o.out}/{', '.join(record.files)}",) if record.files else ()
    return {**record.to_json(), "out": o.out}, language_screen(record).writing(*files).missing(*(OVER,) * over)
