"""Text of strategies: a description of each, and choices as a user types them."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import UserError, unknown
from paceline.hardware import Cluster, device
from paceline.hardware.placement import nodes_text
from paceline.prediction.layouts.batch import Candidate
from paceline.prediction.passes.recompute import saved_bytes
from paceline.strategy import Strategy
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import WholeNumber
from paceline.strategy.choices.values import plain
from paceline.strategy.recompute import FULL_RECOMPUTE
from paceline.strategy.strategy import CHOICES, titles
from paceline.workload.table import Workload

Wanted = Mapping[str, object]
"""Choices by word: ``compression``, ``sharding``, ``nodes``, ``device`` and the rest of ``NAMES``."""
WORDS: Mapping[str, StrategyChoice] = {item.word: item for item in CHOICES.values() if item.word}
"""Choices of a strategy by the word that a user types for each."""
NAMES = (*WORDS, "device", "nodes")
ALIASES = {"software": "framework", **{other: item.word for item in WORDS.values() for other in item.other_words}}
"""Other words for the same choices."""
POINTLESS = "recomputing saves this network no memory: it has no repeated blocks, or they hold too little"
EXAMPLES = {
    **{word: item.example for word, item in WORDS.items()},
    "nodes": "4",
    "link": "'PCIe 4'",
    "attention": "fa2",
    "framework": "hf-trainer",
    "leaf-nodes": "16",
    "oversubscription": "2:1",
    "device": "A100",
    "nic": "inceptionn",
    "aggregation": "SwitchML",
}
_NODES = WholeNumber("nodes")


def parse_wanted(text: str) -> dict[str, object]:
    """Parse choices such as ``compression=terngrad,sharding=zero3,nodes=4``. Raises UserError for an unknown one."""
    wanted: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        given, equals, value = (x.strip() for x in part.partition("="))
        hyphenated = given.replace("_", "-")
        name = ALIASES.get(hyphenated, hyphenated)
        if name not in NAMES:
            raise fixed(name) or unknown(
                "choice", name, NAMES, "write it as compression=terngrad,sharding=zero3; docs/choices.md lists all"
            )
        if not equals or not value:
            raise UserError(f"choice {name} has no value", f"write it as {name}={EXAMPLES.get(name, 'VALUE')}")
        wanted[name] = choice_value(name, value)
    return wanted


def choice_value(name: str, text: str) -> object:
    """Parse the value of one choice. Raises UserError for an illegal one."""
    if name == "device":
        return device(text).name
    return (_NODES if name == "nodes" else WORDS[name].values).parse(text, name)


def fixed(name: str) -> UserError | None:
    """Return the error for a name that belongs to the network instead of the strategy; None for any other name."""
    if name not in ("seq-len", "workload", "lora"):
        return None
    return UserError(f"{name} changes the network, not the strategy", "run the command once for each value")


def saves_memory(workload: Workload) -> bool:
    """Return whether recomputing lowers the memory of activations. Without repeated blocks it does not."""
    return saved_bytes(workload, FULL_RECOMPUTE) > 0


def matches(candidate: Candidate, wanted: Wanted) -> bool:
    """Return whether a candidate has every wanted choice."""
    cluster, strategy = candidate
    here = {"device": cluster.device.name, "nodes": cluster.num_nodes}
    return all(here[k] == v if k in here else _is(strategy, WORDS[k], v) for k, v in wanted.items())


def _is(strategy: Strategy, item: StrategyChoice, value: object) -> bool:
    return bool(strategy.choice(item.name) == plain(item.values.check(value, item.name)))


def describe(cluster: Cluster, s: Strategy) -> str:
    """Describe a strategy: ``4 x 8 A100 SXM 80GB, batch 2048, bf16, dense over allreduce``, and choices not the default."""
    devices = nodes_text(cluster.node_text, cluster.num_nodes)
    parts = [f"{devices} {cluster.device.name}", f"batch {s.global_batch_size}", s.precision]
    if s.world_size > 1:
        x = s.gradient_exchange
        served = f"{x} of {x.servers}" if x.servers > 1 else str(x)
        plain = x.is_plain
        parts += [s.parallelism.sharding.name] if s.parallelism.sharding.shares_out else []
        parts += [served] if not s.parallelism.sharding.shares_out or not plain else []
    return ", ".join([*parts, *titles(s)])


def choices_text(s: Strategy) -> str:
    """Describe how the work is divided, without devices, batch and precision: ``zero3, tensor 2, 4 micro steps``."""
    x = s.gradient_exchange
    compressed = [] if x.is_plain else [str(x)]
    replicated = s.parallelism.data > 1 or s.parallelism.model_devices == 1
    return ", ".join([*([s.parallelism.sharding.name] if replicated else []), *compressed, *titles(s)])
