"""``paceline workload``: the catalogue of networks."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from paceline.cli.arguments.prediction_arguments import add_workload_arguments
from paceline.cli.arguments.prediction_inputs import workload_of
from paceline.cli.parser import Answer, Parser
from paceline.reporting.text.catalogue_text import workload_screen, workloads_screen
from paceline.workload import Workload, names

_KEYS = ("name", "sample", "source", "num_parameters", "flops_forward", "flops_per_sample", "activation_bytes")


def add(parser: Parser) -> None:
    """Add the actions of ``paceline workload``."""
    action = parser.group("example:\n  paceline workload show alexnet")
    action("list", "every named network").runs(_list, "example:\n  paceline workload list")
    show = action("show", "a layer table")
    show.runs(_show, "example:\n  paceline workload show llama-3-8b --seq-len 4k --lora r=16")
    add_workload_arguments(show)


def _list(o: argparse.Namespace) -> Answer:
    tables = [Workload.named(name) for name in names()]
    rows = [
        {**{key: getattr(table, key) for key in _KEYS}, "table_elements": table.tables.elements if table.tables else 0}
        for table in tables
    ]
    return {"workloads": rows}, workloads_screen(tables)


def _show(o: argparse.Namespace) -> Answer:
    table = workload_of(o)
    return asdict(table), workload_screen(table)
