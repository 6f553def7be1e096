"""Options that several of ``predict``, ``plan``, ``whatif`` and ``explain`` share."""

from __future__ import annotations

import argparse

from paceline.calibration import attention
from paceline.cli.arguments.choice_arguments import PREDICTED, add_choice_arguments
from paceline.cli.arguments.exchange_arguments import add_compression_arguments
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError
from paceline.hardware import Cluster, aggregation, nic
from paceline.hardware.placement import parse_sizes
from paceline.strategy.codec_place import IN_CARD, PLACES
from paceline.strategy.exchanges import EXCHANGES
from paceline.strategy.frameworks import FRAMEWORKS, LEVELS
from paceline.strategy.strategy import CHOICES
from paceline.units import parse_tokens


def add_prediction_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for one network on one cluster with one strategy."""
    machines = section(parser, "machines")
    software = section(parser, "software")
    add_workload_arguments(parser)
    add_from_argument(parser)
    device = "a device, or an instance with its network (paceline hardware list; default: the device of the --records)"
    machines.add_argument("--device", metavar="D", help=device)
    sizes = "devices of each node: 8, or 1+7 for a node of one and a node of seven (default 1)"
    machines.add_argument("--devices-per-node", metavar="N", type=parse_sizes, help=sizes)
    machines.add_argument("--nodes", metavar="M", type=int, help="default 1")
    short = "'2x8 A100' (two nodes of eight), '1+7 A100', '8 A100', '2x p5.48xlarge'"
    replaced = "in place of --device, --devices-per-node and --nodes"
    common(machines.add_argument("--cluster", "--on", metavar="C", help=f"{short}: {replaced}"))
    between = "between nodes, per node and direction: 10Gb/s, 100Gb/s RoCE, or a link's name"
    common(machines.add_argument("--network", metavar="LINK", help=between))
    leaf = "nodes of a leaf switch that has fewer links up than down (default: no switch blocks)"
    machines.add_argument("--leaf-nodes", metavar="N", type=int, default=0, help=leaf)
    blocking = "bandwidth of those nodes together over that of their leaf switch's links up: 2 or 2:1 (default 1)"
    machines.add_argument("--oversubscription", metavar="X", default="1", help=blocking)
    add_fabric_arguments(parser)
    add_choice_arguments(parser, PREDICTED)
    each = "samples of one device in a micro step; the global batch is B x --grad-accum x replicas"
    section(parser, CHOICES["global_batch_size"].topic).add_argument("--micro-batch-size", metavar="B", type=int, help=each)
    add_compression_arguments(parser)
    add_software_argument(parser)
    loader = "what the input pipeline delivers to all devices together (default: it keeps up)"
    software.add_argument("--loader", metavar="SAMPLES_PER_S", type=float, default=0.0, help=loader)
    pace = "seconds of a step of some workers, relative to a usual one: 1.5 for a slow one, 1.5,2 for two (default: all 1)"
    software.add_argument("--worker-times", metavar="X,Y", type=parse_times, default=(), help=pace)
    add_records_argument(parser)


def parse_times(text: str) -> tuple[float, ...]:
    """Read ``1.5,2``. Raises UserError."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"worker times {text!r}", "write numbers such as 1.5 or 1.5,2") from None


CARDS = "Paceline engine, INCEPTIONN goal, INCEPTIONN VC709"
SWITCHES = "SHARP, SwitchML, ATP, Paceline switch"
"""Catalogue's names of switches, repeated here so that help reads no files. A test compares them."""


def add_fabric_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for cards that compress and switches that add."""
    fabric = section(parser, "fabric")
    card = f"the network card of --codec-at nic: {CARDS}; NAME:RATE for another engine, inceptionn:10Gb/s (default the first)"
    fabric.add_argument("--nic", metavar="NAME", help=card)
    adds = f"what the switches between nodes add up for --exchange switch, as in: {SWITCHES}"
    fabric.add_argument("--aggregation", metavar="NAME", help=adds)


def with_fabric(cluster: Cluster, o: argparse.Namespace) -> Cluster:
    """Return the cluster with the card and the switches that the options name. Raises UserError, also if nothing uses them."""
    exchanges = [name.casefold() for name in ([o.exchange] if isinstance(o.exchange, str) else o.exchange or ())]
    changed = {text.partition("=")[0].strip().replace("-", "_") for text in getattr(o, "change", None) or ()}
    if o.nic and PLACES.get((o.codec_at or "").casefold()) is not IN_CARD and "codec_at" not in changed:
        raise UserError(f"--nic {o.nic}, and the codec is not in a network card", "give --codec-at nic, or leave --nic out")
    in_switch = any(EXCHANGES[name].uses_switch for name in exchanges if name in EXCHANGES)
    if o.aggregation and not in_switch and "exchange" not in changed:
        said = "give --exchange switch, or leave --aggregation out"
        raise UserError(f"--aggregation {o.aggregation}, and no exchange takes its sums in a switch", said)
    named = {"nic": o.nic and nic(o.nic), "aggregation": o.aggregation and aggregation(o.aggregation)}
    given = {name: value for name, value in named.items() if value}
    return cluster.changed(**given) if given else cluster


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the network, its sequence length, and its trained part."""
    model = section(parser, "model")
    names = "a name (paceline workload list), a Hugging Face config.json or its folder, module:function or file.py:Class"
    parser.add_argument("workload", metavar="WORKLOAD", help=names)
    length = "tokens of a sequence, such as 512 or 4k = 4,096 (default the network's own)"
    common(model.add_argument("--seq-len", metavar="S", type=parse_tokens, help=length))
    given = "arguments of a function or class, as Python writes them: hidden=512,layers=4"
    model.add_argument("--args", metavar="A=V,...", default="", help=given)
    sample = "one sample: 3x224x224, tokens:512 (default: its example_input); 512px,cached and 81x480x832 of diffusion"
    model.add_argument("--input", metavar="I", default="", help=sample)
    lora = "train adapters alone: r=16 (of attention), r=16,targets=q_proj+v_proj or all-linear, qlora, dora, qdora, int8,r=16"
    common(model.add_argument("--lora", metavar="L", default="", help=lora))


def add_from_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for files of other tools that state the question."""
    files = (
        "read the question from files of other tools: DeepSpeed, Accelerate, axolotl, LLaMA-Factory, NeMo, torchtitan, a "
        "script or a Slurm job; options win over files (docs/files.md)"
    )
    option = section(parser, "model").add_argument("--from", dest="from_files", metavar="FILE", nargs="+", help=files)
    common(option)


def add_software_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for the efficiency of the software on devices and links."""
    software = section(parser, "software")
    names = (
        f"software that trains: {', '.join(FRAMEWORKS)}. ordinary is framework code as people write it, tuned code as for a "
        "benchmark: fused kernels, graphs, layouts (default ordinary)"
    )
    common(software.add_argument("--framework", "--software", metavar="F", default="ordinary", help=names))
    fused = "chains of element-wise kernels are fused, as by torch.compile; tuned software has them fused"
    software.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None, help=fused)
    usual = ", ".join(f"{attention.usual(level)} for {level} software" for level in LEVELS)
    kernels = f"kernel of attention: {', '.join(attention.KERNELS)} (default {usual}, eager before mid-2021)"
    software.add_argument("--attention", metavar="K", default="", help=kernels)
    year = "year of tuned software, such as 2021.5, which was slower (default: the newest)"
    software.add_argument("--software-year", metavar="Y", type=float, default=0.0, help=year)


def add_records_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for measured records."""
    software = section(parser, "software")
    records = (
        "measured steps that correct the prediction: a run directory, or FILE.csv, a table of jobs (docs/planning.md); "
        "FILE.json of a probe names the device; may be repeated"
    )
    software.add_argument("--records", metavar="DIR|FILE", action="append", help=records)


def add_price_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for prices of devices."""
    limits = section(parser, "limits")
    price = (
        "dollars per device and hour: 2.50 of the device that is named, H100=2.50, p5.48xlarge=55 for all of it; "
        "may be repeated (default: the listings)"
    )
    limits.add_argument("--price", metavar="P", action="append", help=price)
