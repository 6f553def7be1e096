"""The words of ``predict``, ``plan``, ``whatif`` and ``explain``, and what they mean. Imports no torch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline import hardware
from paceline.calibration.records import is_probe, machine, observations
from paceline.errors import UserError, unknown
from paceline.hardware import PRECISIONS, Cluster
from paceline.hardware.prices import parse_prices
from paceline.planning.amount import work_asked
from paceline.planning.asynchronous import AsyncPrediction, predict_asynchronous
from paceline.planning.choice import Plan
from paceline.planning.explain import Explained, explain
from paceline.planning.goal import parse_goal
from paceline.planning.plan import plan
from paceline.planning.space import MAX_LOSS, Space, worlds
from paceline.planning.strategy_text import Wanted, parse_wanted
from paceline.planning.whatif import WhatIf, parse_change, whatif
from paceline.prediction import Predictor, fit
from paceline.prediction.correction import Correction
from paceline.strategy import BUCKET_BYTES, COMPRESSIONS, EXCHANGES, OPTIMIZERS, SHARDINGS, Strategy, parse_options
from paceline.strategy.arguments import add_exchange_arguments
from paceline.strategy.optimizer import usual_optimizer
from paceline.units import parse_bytes
from paceline.workload import Workload, workload

PLAN_EXAMPLE = """example:
  paceline plan resnet-50 --device A100 --devices-per-node 8 --network 100Gb/s --max-nodes 8 --target mlperf"""
WHATIF_EXAMPLE = """example:
  paceline whatif resnet-50 --device V100 --nodes 8 --network 10Gb/s --global-batch 1024 --change network=100Gb/s"""
EXPLAIN_EXAMPLE = """example:
  paceline explain resnet-50 --device V100 --nodes 8 --network 10Gb/s --global-batch 1024"""
PRICE = "dollars for a device and hour: 2.50, or H100=2.50; may be repeated (default: the listings)"
RECORDS = (
    "measured steps that correct it: a run directory, or FILE.csv, a table of jobs (docs/planning.md); FILE.json of a probe "
    "names the device; may be repeated"
)
TARGET = (
    "train to a quality: mlperf (default where it is known and neither a batch nor samples are given), a CSV of "
    "global_batch,samples_to_target, or accuracy=0.97, with --records of runs that reach it (at several batches, or of one run "
    "with its noise scale)"
)
SERVERS = "workers that hold the parameters, of exchange parameter_server"
BUCKET = f"{BUCKET_BYTES >> 20}MiB"
REPORT = "also write report.html into DIR, or into FILE.html"


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """One network on one cluster in one way."""
    parser.add_argument("workload", metavar="WORKLOAD", help="a name (paceline workload list) or module:function")
    add_sequence_argument(parser)
    parser.add_argument("--device", metavar="D", help="a device (paceline hardware list); left out, that of the --records")
    parser.add_argument("--devices-per-node", metavar="N", type=int, default=1, help="default 1")
    parser.add_argument("--nodes", metavar="M", type=int, default=1, help="default 1")
    parser.add_argument("--network", metavar="LINK", help="between nodes, per node and direction: 10Gb/s, or a link's name")
    parser.add_argument("--global-batch", metavar="B", type=int, required=True, help="samples a step, over all devices")
    parser.add_argument("--precision", metavar="P", default="fp32", help=f"{', '.join(PRECISIONS)} (default fp32)")
    add_exchange_arguments(parser)
    parser.add_argument("--servers", metavar="M", type=int, default=1, help=f"{SERVERS} (default 1)")
    parser.add_argument("--grad-accum", metavar="A", type=int, default=1, help="micro batches a step (default 1)")
    sized = f"DDP's buckets after the first, and the least that FSDP gathers: 100MB (default {BUCKET})"
    parser.add_argument("--bucket", metavar="SIZE", default=BUCKET, help=sized)
    parser.add_argument("--sharding", metavar="S", default="ddp", help=f"{', '.join(SHARDINGS)} (default ddp)")
    parser.add_argument("--recompute", action="store_true", help="run each block again in the backward pass, to save memory")
    add_optimizer_argument(parser)
    add_software_argument(parser)
    fed = "what the input pipeline delivers to all devices together (default: it keeps up)"
    parser.add_argument("--loader", metavar="SAMPLES_PER_S", type=float, default=0.0, help=fed)
    add_records_argument(parser)


def add_optimizer_argument(parser: argparse.ArgumentParser) -> None:
    """What updates the weights."""
    usual = "default adam for networks with attention, momentum for others"
    parser.add_argument("--optimizer", metavar="O", help=f"{', '.join(OPTIMIZERS)} ({usual})")


def add_software_argument(parser: argparse.ArgumentParser) -> None:
    """How well the software is made."""
    said = "ordinary framework code, or tuned as for a benchmark: fused kernels, graphs, layouts (default ordinary)"
    parser.add_argument("--software", metavar="S", default="ordinary", help=said)


def add_sequence_argument(parser: argparse.ArgumentParser) -> None:
    """How long a transformer's samples are."""
    parser.add_argument("--seq-len", metavar="S", type=int, help="tokens of a sequence (default the network's own)")


def add_records_argument(parser: argparse.ArgumentParser) -> None:
    """What was measured before."""
    parser.add_argument("--records", metavar="DIR|FILE", action="append", help=RECORDS)


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Where the page goes."""
    parser.add_argument("--report", metavar="DIR|FILE", default="", help=REPORT)


def add_asynchronous_arguments(parser: argparse.ArgumentParser) -> None:
    """Workers that do not wait for each other."""
    said = "asynchronous SGD: workers that wait for nobody, each with the parameters that --servers more nodes hold"
    parser.add_argument("--asynchronous", action="store_true", help=said)
    where = "what an asynchronous server updates with (default: a device like the workers')"
    parser.add_argument("--server-device", metavar="D", help=where)


def asynchronous_answer(o: argparse.Namespace) -> AsyncPrediction:
    """The asynchronous job, and beside it the same workers in step. Raises UserError."""
    if o.loader:
        raise UserError("asynchronous workers are simulated without an input pipeline", "leave --loader out")
    serving = hardware.device(o.server_device) if o.server_device else None
    among = min(o.servers, o.nodes * o.devices_per_node) if o.exchange == "parameter_server" else 1
    return predict_asynchronous(
        *job(o, among),
        o.servers,
        server_device=serving,
        predictor=predictor(o),
        drawn_steps=2,
    )


def job(o: argparse.Namespace, servers: int | None = None) -> tuple[Workload, Cluster, Strategy]:
    """What ``add_job_arguments`` were given; ``servers`` in place of theirs. Raises UserError."""
    if getattr(o, "server_device", None) and not o.asynchronous:
        raise UserError("only asynchronous servers are other nodes than the workers'", "leave --server-device out")
    machines = _machines(o)
    if o.exchange == "hierarchical" and machines.num_nodes == 1:
        raise UserError("a hierarchical exchange needs several nodes", "leave --exchange out, or give --nodes and --network")
    network = workload(o.workload, o.seq_len)
    strategy = Strategy.of(
        world_size=machines.world_size,
        global_batch_size=o.global_batch,
        precision=o.precision,
        compression=o.compression or "dense",
        exchange=o.exchange or "",
        servers=o.servers if servers is None else servers,
        options=parse_options(o.option or ()),
        bucket_bytes=int(parse_bytes(o.bucket)),
        grad_accum_steps=o.grad_accum,
        sharding=o.sharding,
        recompute=o.recompute,
        optimizer=o.optimizer or usual_optimizer(network),
    )
    return network, machines, strategy


def predictor(o: argparse.Namespace) -> Predictor:
    """At the software's level, fed by the loader, corrected by the records if there are any. Raises UserError."""
    plain = Predictor(software=o.software, loader=getattr(o, "loader", 0.0))
    return replace(plain, correction=_correction(o, plain))


def _correction(o: argparse.Namespace, plain: Predictor) -> Correction | None:
    """What the records teach about the predictor without them."""
    if not o.records:
        return None
    seen, probe = observations(o.records), next(filter(is_probe, o.records), None)
    if o.device and probe:
        raise UserError(f"--device and {probe}, a probe, both name the device", "leave one of them out; plan needs --device")
    return fit(seen, plain) if seen else None


def _machines(o: argparse.Namespace) -> Cluster:
    if o.device:
        return hardware.cluster(o.device, o.devices_per_node, o.nodes, o.network)
    if not o.records:
        raise UserError("no device is named", "give --device (paceline hardware list), or --records of a run on yours")
    seen = machine(o.records)
    if o.nodes > 1 and not o.network and seen.network.kind == "loopback":
        raise UserError(f"{o.nodes} nodes have no network", "name one such as 'InfiniBand HDR' or 10Gb/s")
    between = hardware.network(o.network) if o.network else seen.network
    return replace(seen, devices_per_node=o.devices_per_node, num_nodes=o.nodes, network=between)


def add_plan(group: Any, command: Callable[..., argparse.ArgumentParser], run: Callable[..., Any]) -> None:
    """Add ``plan`` to the command line's ``group``; ``run`` prints what ``plan_answer`` finds."""
    p = command(group, "plan", "the best configuration for a goal", PLAN_EXAMPLE, run)
    p.add_argument("workload", metavar="WORKLOAD", help="a name (paceline workload list) or module:function")
    add_sequence_argument(p)
    add_optimizer_argument(p)
    add_software_argument(p)
    add_records_argument(p)
    p.add_argument("--device", metavar="D", action="append", required=True, help="a device that may be used; may be repeated")
    each = "once for all devices, or once for each --device"
    p.add_argument("--devices-per-node", metavar="N", type=int, action="append", help=f"{each} (default 1)")
    p.add_argument("--network", metavar="LINK", action="append", help=f"between nodes: {each}")
    p.add_argument("--max-nodes", metavar="M", type=int, required=True, help="nodes of one device that there can be")
    p.add_argument("--goal", metavar="G", default="fastest", help="fastest, cheapest, deadline=6h or budget=500 (dollars)")
    p.add_argument("--target", metavar="T", help=TARGET)
    p.add_argument("--epochs", metavar="E", type=float, help="train so many epochs")
    p.add_argument("--samples", metavar="S", type=float, help="train so many samples (default one million)")
    p.add_argument("--global-batch", metavar="B", type=int, action="append", help="only this one; may be repeated")
    for name, legal in (
        ("precision", PRECISIONS),
        ("compression", COMPRESSIONS),
        ("exchange", EXCHANGES),
        ("sharding", SHARDINGS),
    ):
        p.add_argument(
            f"--{name}", metavar=name[0].upper(), action="append", help=f"only this one of {', '.join(legal)}; may be repeated"
        )
    p.add_argument("--servers", metavar="M", type=int, action="append", help=f"{SERVERS} (default 1); may be repeated")
    lost = f"points of accuracy that a compression may have lost where it was measured (default {MAX_LOSS})"
    p.add_argument("--max-loss", metavar="POINTS", type=float, default=MAX_LOSS, help=lost)
    p.add_argument("--penalty", metavar="C=F", action="append", help="a compression takes F times the samples to the target")
    p.add_argument("--price", metavar="P", action="append", help=PRICE)
    p.add_argument("--why-not", metavar="C=V,...", help="set a strategy beside the best: compression=terngrad,sharding=zero3")
    add_report_argument(p)


def plan_answer(o: argparse.Namespace) -> Plan:
    """The plan that the options ask for. Raises UserError."""
    goal, network = parse_goal(o.goal), workload(o.workload, o.seq_len)
    wanted = parse_wanted(o.why_not) if o.why_not else {}
    work = work_asked(o, network, goal)
    space = Space(
        clusters=_clusters(o),
        batches=tuple(sorted(set(o.global_batch or ()))),
        precisions=_only("precision", o.precision, PRECISIONS) if o.precision else (),
        compressions=_only("compression", o.compression, COMPRESSIONS) if o.compression else (),
        exchanges=_only("exchange", o.exchange, EXCHANGES),
        servers=_servers(o.servers or [1], wanted),
        shardings=_only("sharding", o.sharding, SHARDINGS),
        optimizer=o.optimizer or work.optimizer(o.global_batch or ()) or usual_optimizer(network),
        max_loss=o.max_loss,
    )
    if space.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", space.optimizer, OPTIMIZERS)
    if not 0 <= o.max_loss < float("inf"):
        raise UserError(f"--max-loss {o.max_loss:g}", "give points of accuracy from 0 up, such as 0.5")
    for batch in space.batches:
        if batch < 1:
            raise UserError(f"global batch {batch}", "give a whole number from 1 up")
    return plan(
        network,
        space,
        goal,
        work,
        prices=parse_prices(o.price or ()),
        why_not=wanted or None,
        predictor=predictor(o),
    )


def _only(kind: str, given: Sequence[str] | None, legal: Iterable[str]) -> tuple[str, ...]:
    """What was given, or everything."""
    every = tuple(legal)
    for name in given or ():
        if name not in every:
            raise unknown(kind, name, every)
    return tuple(dict.fromkeys(given)) if given else every


def _servers(given: Sequence[int], wanted: Wanted) -> tuple[int, ...]:
    """Those that are given, and those of the strategy that is asked about."""
    for count in given:
        if count < 1:
            raise UserError(f"{count} servers", "give a whole number from 1 up")
    return tuple(sorted({*given, *(int(str(count)) for name, count in wanted.items() if name == "servers")}))


def _clusters(o: argparse.Namespace) -> tuple[Cluster, ...]:
    """Every number of nodes of every device."""
    per_node, networks = _each("devices-per-node", o.devices_per_node or [1], o), _each("network", o.network or [None], o)
    if o.max_nodes < 1:
        raise UserError(f"--max-nodes {o.max_nodes}", "give a whole number from 1 up")
    found = []
    for name, many, link in zip(o.device, per_node, networks, strict=True):
        hardware.cluster(name, many, o.max_nodes, link)  # an impossible one is named before any is searched
        found += [hardware.cluster(name, local, nodes, link) for local, nodes in worlds(many, o.max_nodes)]
    return tuple(found)


def _each(name: str, given: Sequence[Any], o: argparse.Namespace) -> list[Any]:
    if len(given) not in (1, len(o.device)):
        raise UserError(
            f"--{name} is given {len(given)} times for {len(o.device)} devices", "give it once, or once for each --device"
        )
    return list(given) * (len(o.device) if len(given) == 1 else 1)


def add_whatif(group: Any, command: Callable[..., argparse.ArgumentParser], run: Callable[..., Any]) -> None:
    """Add ``whatif`` to the command line's ``group``; ``run`` prints what ``whatif_answer`` finds."""
    p = command(group, "whatif", "what an upgrade gains, in time and in money", WHATIF_EXAMPLE, run)
    add_job_arguments(p)
    said = (
        "nodes+1, nodesx2, devices-per-node=8, network=100Gb/s, device=H100-SXM, or any choice as NAME=VALUE; may be repeated"
    )
    p.add_argument("--change", metavar="CHANGE", action="append", required=True, help=said)
    scaling = "with more devices the global batch stays (strong, default) or grows with them (weak)"
    p.add_argument("--scaling", metavar="S", default="strong", help=scaling)
    p.add_argument("--price", metavar="P", action="append", help=PRICE)
    add_report_argument(p)


def whatif_answer(o: argparse.Namespace) -> WhatIf:
    """What the changes gain. Raises UserError."""
    if o.scaling not in ("strong", "weak"):
        raise unknown("scaling", o.scaling, ["strong", "weak"])
    changes = [parse_change(text) for text in o.change]
    return whatif(*job(o), changes, scaling=o.scaling, prices=parse_prices(o.price or ()), predictor=predictor(o))


def add_explain(group: Any, command: Callable[..., argparse.ArgumentParser], run: Callable[..., Any]) -> None:
    """Add ``explain`` to the command line's ``group``; ``run`` prints what ``explain_answer`` finds."""
    p = command(group, "explain", "what holds a training step back", EXPLAIN_EXAMPLE, run)
    add_job_arguments(p)
    p.add_argument("--run", dest="beside", metavar="DIR", default="", help="a run directory, whose measured step is set beside")
    p.add_argument("--trace", metavar="FILE", default="", help="write the timeline as a Chrome trace, which Perfetto opens")
    add_report_argument(p)


def explain_answer(o: argparse.Namespace) -> Explained:
    """What holds it back; writes the trace where one is asked for. Raises UserError."""
    found = explain(*job(o), o.beside, predictor=predictor(o))
    if o.trace:
        try:
            Path(o.trace).parent.mkdir(parents=True, exist_ok=True)
            Path(o.trace).write_text(json.dumps(found.trace()), encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {o.trace}: {error.strerror or error}", "choose another file with --trace") from error
    return found
