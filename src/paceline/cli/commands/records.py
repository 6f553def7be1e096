"""``paceline records``: import measured steps from files of other software."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.calibration.imports.job_table import MissingFacts, add_row, job_row, table_text
from paceline.calibration.imports.run_files import read_run
from paceline.calibration.imports.step_times import LONG
from paceline.calibration.observation import Observation
from paceline.calibration.records import COLUMNS
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.phrases.node_links import counted_text
from paceline.hardware.placement import sizes_text
from paceline.planning.compare.strategy_text import describe
from paceline.prediction import ORDINARY
from paceline.reporting.text.screen import Paragraph, Screen
from paceline.units import format_memory, parse_tokens

EXAMPLE = """example:
  paceline records import train.log --workload llama-3-8b --cluster '8 A100' --precision bf16 --out jobs.csv"""


def add(parser: Parser) -> None:
    """Add the actions of ``paceline records``."""
    action = parser.group(EXAMPLE)
    read = action("import", "step times of a trace, a log or an export as a row of a table of jobs, for --records")
    read.runs(_import, EXAMPLE)
    files = "a log, an export, an event file, JSON of a trainer, or traces (a file a rank, or a directory): seen by its content"
    read.add_argument("files", metavar="FILE", nargs="+", help=files)
    read.add_argument("--workload", metavar="W", help="the network: a name (paceline workload list) or module:function")
    read.add_argument("--cluster", metavar="C", help="cluster of the run: '2x8 A100' (two nodes of eight), '2x p5.48xlarge'")
    read.add_argument("--network", metavar="LINK", help="between nodes: 100Gb/s, 'InfiniBand HDR'")
    read.add_argument("--global-batch", metavar="B", type=int, help="samples a step, over all devices")
    read.add_argument("--precision", metavar="P", help="of the arithmetic, such as bf16")
    read.add_argument("--seq-len", metavar="S", type=parse_tokens, help="tokens of a sequence (default the network's own)")
    further = "any other column of a job, such as sharding=zero3 or grad_accum=4; may be repeated"
    read.add_argument("--set", metavar="COLUMN=V", action="append", help=further)
    rule = f"steps to leave out at the beginning (default: the first, and those after it that take {LONG:g} medians)"
    read.add_argument("--warmup", metavar="N", type=int, help=rule)
    columns = "of a CSV file: step_time=NAME, or time=NAME and step=NAME; may be repeated (default: by their names)"
    read.add_argument("--column", metavar="ROLE=NAME", action="append", help=columns)
    read.add_argument("--unit", metavar="U", default="", help="of that column: s, ms or us (default: what its name says)")
    read.add_argument("--out", metavar="FILE.csv", help="add the row to this table (default: print it)")


def _import(o: argparse.Namespace) -> Answer:
    if o.warmup is not None and o.warmup < 0:
        raise UserError(f"--warmup {o.warmup}", "give a whole number of steps from 0 up")
    if o.out and Path(o.out).suffix != ".csv":
        raise UserError(f"--out {o.out}", "a table of jobs is a .csv file")
    pairs = _pairs("--column", o.column)
    given = _given_columns(o)
    devices = Cluster.named(o.cluster, o.network).world_size if o.cluster else None
    run = read_run(
        [Path(name) for name in o.files],
        global_batch=o.global_batch,
        seq_len=o.seq_len,
        world_size=devices,
        columns=pairs,
        unit=o.unit,
        warmup=o.warmup,
    )
    took = f"{run.file} is read as {run.took({*given, 'world_size'} if devices else given)}"
    try:
        row, seen = job_row(run.measured_steps, given, o.warmup)
    except MissingFacts as error:
        counted = "" if "global_batch" in given or not run.tokens_per_step else _counted_tokens(run.tokens_per_step)
        raise UserError(error.message, f"{error.fix}{counted} ({took})") from None
    doubt = (*run.notes, *_held(seen))
    data = {
        "row": row,
        "steps": int(row["#steps"]),
        "step_s": seen.step_s,
        "sync_s": seen.sync_s,
        "kind": run.kind,
        "took": took,
    }
    if not o.out:
        return data, Screen.verbatim(table_text([row]), f"step {seen.step_s * 1e3:.4g} ms ({row['#source']})")
    rows = add_row(Path(o.out), row)
    spread = f"half of {row['#steps']} steps between {float(row['#low_s']) * 1e3:.4g} and {float(row['#high_s']) * 1e3:.4g} ms"
    waited = "" if seen.sync_s is None else f", of which it waited {seen.sync_s * 1e3:.4g} ms for the exchange"
    step = f"step {seen.step_s * 1e3:.4g} ms ({row['#source']}; {spread}){waited}"
    job = f"{seen.workload.name} on {describe(seen.cluster, seen.strategy)}"
    table = f"{o.out} has {rows} row{'s' * (rows > 1)}; paceline predict ... --records {o.out} learns from it"
    screen = Screen(title=job, answer=(Paragraph(step), Paragraph(took)), brief=f"{job}: {step}", notes=doubt).writing(table)
    return {**data, "table": o.out, "rows": rows}, screen


def _counted_tokens(tokens: float) -> str:
    return f", or --seq-len for the batch, as a step has {tokens:,.0f} tokens"


def _held(seen: Observation) -> tuple[str, ...]:
    """Return a warning if the devices may not hold the job. Raises UserError if they cannot: the run must have differed."""
    step = ORDINARY.step(seen.workload, seen.cluster, seen.strategy)
    has = seen.cluster.device.memory.value
    states = sum(step.memory.get(name, 0.0) for name in ("weights", "frozen weights", "gradients", "optimizer state"))
    job = f"{seen.workload.name} on {describe(seen.cluster, seen.strategy)}"
    if states > has:
        what = f"weights, gradients and optimizer would take {format_memory(states)} of {format_memory(has)} a device"
        how = "say how it was divided: --set sharding=zero3, or tensor, pipeline, optimizer or offload"
        raise UserError(f"{job} cannot have run so: {what}", how)
    if step.fits:
        return ()
    needs = f"{format_memory(step.memory_bytes)} of {format_memory(has)} a device"
    return (f"As described it would need {needs}: --set recompute=full or grad_accum=N where it ran so.",)


def _given_columns(o: argparse.Namespace) -> dict[str, str]:
    """Return the columns that options set. Raises UserError for a column given twice."""
    given = _pairs("--set", o.set)
    options = {
        "workload": o.workload or "",
        "network": o.network or "",
        "global_batch": "" if o.global_batch is None else str(o.global_batch),
        "precision": o.precision or "",
        "seq_len": "" if o.seq_len is None else str(o.seq_len),
        **_machine(o),
    }
    for name in given:
        if options.get(name):
            raise UserError(f"--set {name} and --{name.replace('_', '-')} say one thing", "give one of them")
    return {**given, **{name: value for name, value in options.items() if value}}


def _machine(o: argparse.Namespace) -> dict[str, str]:
    if o.cluster is None:
        return {}
    cluster = Cluster.named(o.cluster, o.network)
    sizes = cluster.levels[0].size if not cluster.even else cluster.devices_per_node
    row = {"device": cluster.device.name, "devices_per_node": sizes_text(sizes), "nodes": str(cluster.num_nodes)}
    between = o.network or ("" if cluster.num_nodes == 1 else counted_text(cluster.network))
    return {**row, "network": between}


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """Parse ``NAME=VALUE`` of a repeated option. Raises UserError for a text without ``=`` or a name given twice."""
    pairs: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not value:
            legal = f" of {', '.join(COLUMNS[4:])}" if option == "--set" else ""
            raise UserError(f"{option} {text}", f"give NAME=VALUE{legal}")
        if name in pairs:
            raise UserError(f"{option} {name} is given twice", "give it once")
        pairs[name] = value
    return pairs
