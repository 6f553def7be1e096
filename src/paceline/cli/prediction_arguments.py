"""What ``predict``, ``plan``, ``whatif`` and ``explain`` ask for, or several of them."""

from __future__ import annotations

import argparse

from paceline.calibration import attention
from paceline.calibration.constants import LEVELS
from paceline.cli.exchange_arguments import add_exchange_arguments
from paceline.errors import UserError
from paceline.hardware import PRECISIONS, Cluster, aggregation, nic
from paceline.hardware.placement import parse_sizes
from paceline.strategy import BUCKET_BYTES, OPTIMIZERS, SHARDINGS
from paceline.strategy.offload import OFFLOADS
from paceline.strategy.optimizer import DEFAULT
from paceline.strategy.parallelism import CONTEXT_EXCHANGES, EXPERT_EXCHANGES, GATHER_BITS, GRADIENT_BITS, SCHEDULES
from paceline.strategy.recompute import MODULES, RECOMPUTATIONS
from paceline.strategy.usual_precision import RULE
from paceline.units import parse_tokens

SERVERS = "workers that hold the parameters, for exchange parameter_server"
_BUCKET = f"{BUCKET_BYTES >> 20}MiB"


def add_prediction_arguments(parser: argparse.ArgumentParser) -> None:
    """One network on one cluster with one strategy."""
    add_workload_arguments(parser)
    device = "a device, or an instance with its network (paceline hardware list; default: the device of the --records)"
    parser.add_argument("--device", metavar="D", help=device)
    sizes = "devices of each node: 8, or 1+7 for a node of one and a node of seven (default 1)"
    parser.add_argument("--devices-per-node", metavar="N", type=parse_sizes, help=sizes)
    parser.add_argument("--nodes", metavar="M", type=int, help="default 1")
    short = "'2x8 A100' (two nodes of eight), '1+7 A100', '8 A100', '2x p5.48xlarge'"
    replaced = "in place of --device, --devices-per-node and --nodes"
    parser.add_argument("--cluster", metavar="C", help=f"{short}: {replaced}")
    between = "between nodes, per node and direction: 10Gb/s, 100Gb/s RoCE, or a link's name"
    parser.add_argument("--network", metavar="LINK", help=between)
    leaf = "nodes of a leaf switch that has fewer links up than down (default: no switch blocks)"
    parser.add_argument("--leaf-nodes", metavar="N", type=int, default=0, help=leaf)
    blocking = "bandwidth of those nodes together over that of their leaf switch's links up: 2 or 2:1 (default 1)"
    parser.add_argument("--oversubscription", metavar="X", default="1", help=blocking)
    add_fabric_arguments(parser)
    batch = "samples a step, over all devices (default: the most for each device that fits: a power of two up to 1,024)"
    parser.add_argument("--global-batch", metavar="B", type=int, help=batch)
    parser.add_argument("--precision", metavar="P", help=f"{', '.join(PRECISIONS)} ({RULE})")
    add_exchange_arguments(parser)
    parser.add_argument("--servers", metavar="M", type=int, default=1, help=f"{SERVERS} (default 1)")
    parser.add_argument(
        "--grad-accum", "--micro-batches", metavar="A", type=int, default=1, help="micro batches a step (default 1)"
    )
    bucket = f"DDP's buckets after the first, and the least that FSDP gathers: 100MB (default {_BUCKET})"
    parser.add_argument("--bucket", metavar="SIZE", default=_BUCKET, help=bucket)
    parser.add_argument("--sharding", metavar="S", default="ddp", help=f"{', '.join(SHARDINGS)} (default ddp)")
    groups = "devices that share one copy, neighbours; other groups hold copies (HSDP; default 0: all)"
    parser.add_argument("--shard-devices", metavar="N", type=int, default=0, help=groups)
    offload = f"what lies in the host's memory: {', '.join(OFFLOADS)} (default none)"
    parser.add_argument("--offload", metavar="O", default="none", help=offload)
    add_wire_arguments(parser)
    add_parallelism_arguments(parser)
    add_recompute_arguments(parser)
    add_optimizer_argument(parser)
    add_software_argument(parser)
    loader = "what the input pipeline delivers to all devices together (default: it keeps up)"
    parser.add_argument("--loader", metavar="SAMPLES_PER_S", type=float, default=0.0, help=loader)
    add_records_argument(parser)


CARDS = "Paceline engine, INCEPTIONN goal, INCEPTIONN VC709"
SWITCHES = "SHARP, SwitchML, ATP, Paceline switch"
"""Names of the catalogue, here so that no help reads its files; a test compares them."""


def add_fabric_arguments(parser: argparse.ArgumentParser) -> None:
    """Cards that compress and switches that add."""
    card = f"the network card of --codec-at nic: {CARDS}; NAME:RATE for another engine, inceptionn:10Gb/s (default the first)"
    parser.add_argument("--nic", metavar="NAME", help=card)
    adds = f"what the switches between nodes add up for --exchange switch, as in: {SWITCHES}"
    parser.add_argument("--aggregation", metavar="NAME", help=adds)


def with_fabric(cluster: Cluster, o: argparse.Namespace) -> Cluster:
    """The cluster with the card and the switches that the options name. Raises UserError, also where nothing uses these."""
    exchanges = [name.casefold() for name in ([o.exchange] if isinstance(o.exchange, str) else o.exchange or ())]
    changed = {text.partition("=")[0].strip().replace("-", "_") for text in getattr(o, "change", None) or ()}
    if o.nic and (o.codec_at or "").casefold() != "nic" and "codec_at" not in changed:
        raise UserError(f"--nic {o.nic}, and the codec is not in a network card", "give --codec-at nic, or leave --nic out")
    if o.aggregation and "switch" not in exchanges and "exchange" not in changed:
        said = "give --exchange switch, or leave --aggregation out"
        raise UserError(f"--aggregation {o.aggregation}, and no exchange takes its sums in a switch", said)
    named = {"nic": o.nic and nic(o.nic), "aggregation": o.aggregation and aggregation(o.aggregation)}
    given = {name: value for name, value in named.items() if value}
    return cluster.changed(**given) if given else cluster


def add_wire_arguments(parser: argparse.ArgumentParser) -> None:
    """In how many bits weights and gradients travel where optimizer state is shared out."""
    gathered = f"of a weight that is gathered: {', '.join(map(str, GATHER_BITS))} (default 0: as the sharding has it)"
    parser.add_argument("--gather-bits", metavar="N", type=int, default=0, help=gathered)
    added = f"of a gradient on its way to its owner: {', '.join(map(str, GRADIENT_BITS))} (default 0: likewise)"
    parser.add_argument("--gradient-bits", metavar="N", type=int, default=0, help=added)


def add_parallelism_arguments(parser: argparse.ArgumentParser) -> None:
    """How a replica of the network is divided among devices."""
    tensor = "devices that divide each layer, neighbours in a node (default 1)"
    parser.add_argument("--tensor", metavar="T", type=int, default=1, help=tensor)
    sequence = "the devices of --tensor also divide norms, dropout and sums, by tokens"
    parser.add_argument("--sequence", action="store_true", help=sequence)
    context = "devices that divide each sequence (default 1)"
    parser.add_argument("--context", metavar="C", type=int, default=1, help=context)
    swapped = f"how attention gets the others' tokens: {', '.join(CONTEXT_EXCHANGES)} (default ring)"
    parser.add_argument("--context-exchange", metavar="E", default="ring", help=swapped)
    parser.add_argument("--pipeline", metavar="P", type=int, default=1, help="stages that follow each other (default 1)")
    virtual = "parts of the network on each stage: more than 1 is the interleaved schedule (default 1)"
    parser.add_argument("--virtual-stages", metavar="V", type=int, default=1, help=virtual)
    ends = "blocks of the {} stage (default 0: as many as the others)"
    for name in ("first", "last"):
        parser.add_argument(f"--{name}-stage-layers", metavar="L", type=int, default=0, help=ends.format(name))
    parser.add_argument("--schedule", metavar="S", default="1f1b", help=f"of a pipeline: {', '.join(SCHEDULES)} (default 1f1b)")
    expert = "devices of a stage that share the experts of a mixture (default 1)"
    parser.add_argument("--expert", metavar="E", type=int, default=1, help=expert)
    width = "devices that share each expert, by its width (default 1)"
    parser.add_argument("--expert-tensor", metavar="T", type=int, default=1, help=width)
    uneven = "tokens of the device whose experts get most, over the mean (default 1: balanced)"
    parser.add_argument("--expert-imbalance", metavar="F", type=float, default=1.0, help=uneven)
    sent = f"how tokens get to their experts: {', '.join(EXPERT_EXCHANGES)} (default all_to_all)"
    parser.add_argument("--expert-exchange", metavar="E", default="all_to_all", help=sent)
    beside = "exchanges of experts run beside the computing of another micro batch"
    parser.add_argument("--expert-overlap", action="store_true", help=beside)


def add_recompute_arguments(parser: argparse.ArgumentParser) -> None:
    """What the backward pass computes again."""
    again = f"{', '.join(RECOMPUTATIONS)}; selective:PARTS of {', '.join(MODULES)} (default none; without a value full)"
    parser.add_argument("--recompute", metavar="R", nargs="?", const="full", default="none", help=again)
    layers = "blocks of each stage that recompute (default 0: all)"
    parser.add_argument("--recompute-layers", metavar="L", type=int, default=0, help=layers)


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """The network, how long a transformer's samples are, and what of it is trained."""
    names = "a name (paceline workload list), a Hugging Face config.json or its folder, module:function or file.py:Class"
    parser.add_argument("workload", metavar="WORKLOAD", help=names)
    length = "tokens of a sequence, such as 512 or 4k = 4,096 (default the network's own)"
    parser.add_argument("--seq-len", metavar="S", type=parse_tokens, help=length)
    given = "arguments of a function or class, as Python writes them: hidden=512,layers=4"
    parser.add_argument("--args", metavar="A=V,...", default="", help=given)
    sample = "one sample of its input: 3x224x224, tokens:512 (default: its example_input)"
    parser.add_argument("--input", metavar="I", default="", help=sample)
    lora = "train adapters alone: r=16, r=16,targets=q_proj+v_proj, targets=attention (default) or all-linear"
    parser.add_argument("--lora", metavar="L", default="", help=lora)


def add_optimizer_argument(parser: argparse.ArgumentParser) -> None:
    """What updates the weights."""
    usual = f"default {DEFAULT}"
    parser.add_argument("--optimizer", metavar="O", help=f"{', '.join(OPTIMIZERS)} ({usual})")


def add_software_argument(parser: argparse.ArgumentParser) -> None:
    """How much of the devices and links the software gets."""
    levels = "ordinary framework code, or tuned as for a benchmark: fused kernels, graphs, layouts (default ordinary)"
    parser.add_argument("--software", metavar="S", default="ordinary", help=levels)
    fused = "chains of element-wise kernels are fused, as by torch.compile; tuned software has them fused"
    parser.add_argument("--compile", action="store_true", help=fused)
    usual = ", ".join(f"{attention.usual(level)} for {level} software" for level in LEVELS)
    kernels = f"kernel of attention: {', '.join(attention.KERNELS)} (default {usual}, eager before mid-2021)"
    parser.add_argument("--attention", metavar="K", default="", help=kernels)
    year = "year of tuned software, such as 2021.5, which was slower (default: the newest)"
    parser.add_argument("--software-year", metavar="Y", type=float, default=0.0, help=year)


def add_records_argument(parser: argparse.ArgumentParser) -> None:
    """What was measured before."""
    records = (
        "measured steps that correct the prediction: a run directory, or FILE.csv, a table of jobs (docs/planning.md); "
        "FILE.json of a probe names the device; may be repeated"
    )
    parser.add_argument("--records", metavar="DIR|FILE", action="append", help=records)


def add_price_argument(parser: argparse.ArgumentParser) -> None:
    """What devices cost."""
    price = (
        "dollars per device and hour: 2.50 of the device that is named, H100=2.50, p5.48xlarge=55 for all of it; "
        "may be repeated (default: the listings)"
    )
    parser.add_argument("--price", metavar="P", action="append", help=price)
