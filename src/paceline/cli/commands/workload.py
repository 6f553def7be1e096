"""``paceline workload``: the catalogue of networks."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from paceline.cli.arguments.prediction_arguments import add_workload_arguments
from paceline.cli.arguments.prediction_inputs import workload_of
from paceline.cli.parser import Answer, Parser
from paceline.errors import unknown
from paceline.names import fold
from paceline.reporting.text.catalogue_text import workload_screen, workloads_screen
from paceline.workload import Workload, names
from paceline.workload.catalogue import library_models
from paceline.workload.family import family

_KEYS = ("name", "sample", "source", "num_parameters", "flops_forward", "flops_per_sample", "activation_bytes")


def add(parser: Parser) -> None:
    """Add the actions of ``paceline workload``."""
    action = parser.group("example:\n  paceline workload show alexnet")
    every = action("list", "every named network")
    every.add_argument("words", metavar="WORD", nargs="?", default="", help="names with this text alone, such as gemma")
    every.add_argument("--group", metavar="GROUP", help="those of one group alone, such as speech")
    every.runs(_list, "example:\n  paceline workload list --group speech")
    show = action("show", "a layer table")
    show.runs(_show, "example:\n  paceline workload show llama-3-8b --seq-len 4k --lora r=16")
    add_workload_arguments(show)


def _list(o: argparse.Namespace) -> Answer:
    part = fold(o.words)
    groups = sorted({family(Workload.named(name)) for name in names()} | {kept.group for kept in library_models().values()})
    if o.group is not None and o.group not in groups:
        raise unknown("group of networks", o.group, groups, few=len(groups))
    tables = [table for name in names() if part in fold(name) and o.group in (None, family(table := Workload.named(name)))]
    further = {n: kept for n, kept in library_models().items() if part in fold(n) and o.group in (None, kept.group)}
    rows = [
        {**{key: getattr(table, key) for key in _KEYS}, "table_elements": table.tables.elements if table.tables else 0}
        for table in tables
    ]
    listed = bool(part) or o.group is not None
    models = [{"name": name, **asdict(kept)} for name, kept in further.items()]
    return {"workloads": rows, "models": models}, workloads_screen(tables, further, listed=listed)


def _show(o: argparse.Namespace) -> Answer:
    table = workload_of(o)
    return asdict(table), workload_screen(table)
