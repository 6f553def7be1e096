"""``paceline lab``: an emulated cluster on this machine. Everything after ``--`` belongs to the command that it runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from paceline import lab
from paceline.cli.parser import BRIEF, Answer, Parser
from paceline.errors import UserError
from paceline.lab.topology import MOST_MTU, MTU, link_text
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading
from paceline.units import format_bytes, format_seconds

EXAMPLE = """example:
  paceline lab up --hosts 4 --link 1Gb/s
  paceline lab exec -- python train.py"""
UP = "example:\n  paceline lab up --hosts 4 --link 1Gb/s"
EXEC = """example:
  paceline lab exec -- python train.py --rank {rank} --peers {hosts}

RANK, WORLD_SIZE, MASTER_ADDR and what else torchrun sets are in the environment of each."""
SLOTS = 4
STATUS = "example:\n  paceline lab status"
DOWN = "example:\n  paceline lab down"


def add(parser: Parser) -> None:
    """Add the actions of ``paceline lab``."""
    action = parser.group(EXAMPLE)
    up = action("up", "make a cluster of network namespaces on this machine")
    up.runs(_up, UP, shapes=BRIEF)
    up.add_argument("--hosts", metavar="N", type=int, required=True, help="from 1 to 250")
    up.add_argument("--link", metavar="RATE", help="rate of every host's link, each way: 1Gb/s")
    up.add_argument("--latency", metavar="TIME", help="added each way: 100us (default none; needs netem in the kernel)")
    up.add_argument("--slurm", action="store_true", help="with its own Slurm (needs slurm-wlm and munge)")
    up.add_argument("--slots", metavar="N", type=int, help=f"CPUs that Slurm gives out on each host (default {SLOTS})")
    up.add_argument("--switch", action="store_true", help="with a switch that adds gradients, for --exchange switch")
    up.add_argument("--nic", metavar="SPEC", help="a network card that compresses: inceptionn[,bound=2^-K][:RATE]")
    up.add_argument("--nic-ports", metavar="A-B", default="", help="mark packets of these TCP ports for it (needs nft)")
    up.add_argument("--mtu", metavar="BYTES", type=int, default=MTU, help=f"of the links, up to {MOST_MTU} (default {MTU})")
    up.add_argument("--ipv6", action="store_true", help="an IPv6 address for each host too")
    up.add_argument("--loopback", action="store_true", help="without a separate network: 127.0.0.1, unshaped, no privileges")

    run = action("exec", "run a command on every host at once")
    run.runs(_exec, EXEC, shapes=())
    words = "after --; {rank}, {hosts} and {address} are replaced"
    run.add_argument("words", metavar="COMMAND", nargs="+", help=words)
    run.add_argument("--per-host", metavar="N", type=int, default=1, help="ranks on each host (default 1)")
    run.add_argument("--timeout", metavar="SECONDS", type=float, help="end all after this time (default never)")
    run.set_defaults(streams=True, hint="an option of the command's goes after --")

    status = action("status", "hosts, links, bytes, and whether all is there")
    status.runs(_status, STATUS, shapes=BRIEF)
    down = action("down", "remove a lab, or what a crash left of it")
    down.runs(_down, DOWN, shapes=BRIEF)
    for named in (up, run, down):
        named.add_argument("--name", metavar="NAME", default="lab", help="name of the lab (default lab)")
    status.add_argument("--name", metavar="NAME", help="name of the lab (default all)")


def _up(o: argparse.Namespace) -> Answer:
    if o.loopback and o.link:
        raise UserError("--loopback has no --link: it is unshaped", "leave one of them out")
    if not o.loopback and not o.link:
        raise UserError("--link is missing", "give a rate such as --link 1Gb/s, or --loopback")
    if o.slots is not None and not o.slurm:
        raise UserError("--slots is of Slurm", "give --slurm too, or leave it out")
    slots = (SLOTS if o.slots is None else o.slots) if o.slurm else 0
    if o.slurm and slots < 1:
        raise UserError(f"{slots} CPUs a host for Slurm", "give a whole number from 1 up")
    link = None if o.loopback else o.link
    if o.nic is not None and not o.nic.strip():
        raise UserError("--nic is empty", "give a codec such as --nic inceptionn, or leave it out")
    cards = {"nic": o.nic or "", "nic_ports": o.nic_ports, "mtu": o.mtu, "ipv6": o.ipv6}
    more = {"slurm_slots": slots, "switch_adds": o.switch, **cards}
    cluster = lab.up(o.hosts, link, o.name, o.latency, **more, say=_printer(o.name))
    text = f"{o.name}: {o.hosts} hosts, {link_text(cluster.topology.link)}"
    text += f", cards {cluster.topology.nic}" if cluster.topology.nic else ""
    text += "; up" if cluster.fresh else "; was up already, left as it is"
    if cluster.is_loopback:
        text += "; all on 127.0.0.1, unshaped"
    if slots:
        print(f"{o.name}: Slurm's commands run behind {' '.join(cluster.slurm())}", file=sys.stderr)
    return {**cluster.status().to_json(), "made": cluster.fresh}, Screen.plain(text)


def _exec(o: argparse.Namespace) -> Answer:
    cluster, began = lab.find(o.name), time.perf_counter()
    try:
        results = cluster.run(o.words, timeout=o.timeout, per_host=o.per_host, stream=not o.json)
    except lab.HostFailed as error:
        if o.json:
            return _results(error.results, error.code), Screen.plain("")
        raise
    duration = format_seconds(time.perf_counter() - began)
    print(f"{o.name}: {len(results)} ranks ended with code 0 after {duration}", file=sys.stderr)
    return _results(results, 0), Screen.plain("")


def _results(results: Sequence[lab.HostResult], code: int) -> dict[str, Any]:
    return {"exit_code": code, "ranks": [asdict(result) for result in results]}


def _status(o: argparse.Namespace) -> Answer:
    names = lab.labs() if o.name is None else [o.name]
    statuses = [lab.find(name).status() for name in names]
    data = {"labs": [status.to_json() for status in statuses]}
    if not statuses:
        return data, Screen.plain("no lab is up; paceline lab up --hosts 4 --link 1Gb/s")
    blocks = [block for status in statuses for block in _status_blocks(status)]
    return data, Screen(title="", answer=tuple(blocks), brief="; ".join(map(_headline, statuses)))


def _headline(status: lab.LabStatus) -> str:
    topology = status.state.topology
    latency = f", {format_seconds(topology.latency)} later each way" if topology.latency else ""
    whole = "complete" if status.complete else "incomplete"
    slots = f", Slurm with {topology.slots} CPUs a host" if topology.slots else ""
    slots += ", a switch that adds" if topology.adds else ""
    cards = f", cards {topology.nic}" if topology.nic else ""
    return f"{topology.name}: {topology.hosts} hosts, {link_text(topology.link)}{latency}{slots}{cards}; {whole}"


def _status_blocks(status: lab.LabStatus) -> Iterator[Block]:
    """Yield the start time of the lab, a row for each host, and the missing parts."""
    topology, since = status.state.topology, status.state.since
    rows = [
        (
            str(host),
            address,
            status.links[host],
            *((format_bytes(c.tx_bytes), format_bytes(c.rx_bytes)) if (c := status.counters[host]) else ("", "")),
            *status.slurm[host : host + 1],
        )
        for host, address in enumerate(topology.addresses)
    ]
    yield GAP
    yield heading(_headline(status))
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    yield Paragraph(f"up since {clock} ({format_seconds(max(0.0, time.time() - since))})")
    if topology.link is not None:
        heads = ("host", "address", "link", "sent", "received", *(("Slurm",) if status.slurm else ()))
        yield Table(heads, rows, frozenset({0, 1, 2, 5}) if status.slurm else frozenset({0, 1, 2}))
    if status.cards:
        heads = ("host", "segments", "compressed", "before", "after", "left alone", "damaged")
        yield Table(heads, [_card_row(host, card) for host, card in enumerate(status.cards)], frozenset({0}))
    yield from (Paragraph(f"lacking: {what}", "bad") for what in status.lacking)


def _card_row(host: int, card: lab.CardCounters | None) -> tuple[str, ...]:
    if card is None:
        return (str(host), "dead", "", "", "", "", "")
    sizes = (format_bytes(card.bytes_before), format_bytes(card.bytes_after))
    return (str(host), str(card.segments), str(card.compressed), *sizes, str(card.left_alone), str(card.damaged))


def _down(o: argparse.Namespace) -> Answer:
    was_up = o.name in lab.labs()
    notes = lab.down(o.name)
    others = f"; up: {', '.join(lab.labs())}" if lab.labs() else ""
    text = f"{o.name}: down" if was_up else f"{o.name}: there is none, nothing to do{others}"
    return {"name": o.name, "removed": was_up, "notes": notes}, replace(Screen.plain(*notes, text), brief=text)


def _printer(name: str) -> Callable[[str], None]:
    return lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True)
