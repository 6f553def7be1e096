"""Framework: the kernels, the host's work and the defaults of the software that trains, as one value read from data.

``frameworks.toml`` has one table a framework, each with its sources. ``ordinary`` and ``tuned`` are the two plainest: framework
code as people write it, and code as for a benchmark. Constants are fitted for these two levels; every other framework takes
the constants of its level and differs in what its table states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, get_args

from paceline.errors import UserError, known_name, shown

SoftwareLevel = Literal["ordinary", "tuned"]
LEVELS: tuple[SoftwareLevel, ...] = get_args(SoftwareLevel)
Experts = Literal["grouped", "looped"]
HostThreads = Literal["one", "all"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Framework:
    """Software that trains. Two are equal if they are one object.

    Attributes:
        name: in ``FRAMEWORKS``. ``title``: what it is, in one phrase.
        level: fitted constants of its kernels.
        graphs: True if kernels of tuned software are queued ahead or replayed as graphs. ``compiled_graphs``: the same where it
            compiles.
        compiles: True if it compiles by default.
        attention: default kernel of attention, a name of ``calibration.attention.KERNELS``; empty: the usual one of the level.
        experts: products of a mixture's experts as one ``grouped`` kernel, or ``looped`` over the experts on the host.
        upcasts: True if norms and softmax compute on fp32 copies, in kernels of PyTorch's own.
        fuses: True if its kernels save only the inputs of norms and of gated activations.
        reduce_buckets: elements of its buffers for gradients on their way to their owner.
        live_weights: most elements of gathered weights that stay gathered to be used again.
        fragments: share of a step's tensors that free pieces of PyTorch's memory hold where weights are sharded.
        stream_pools: True if it gathers and reduces on streams of their own, with buffers that no other stream can use.
        megatron: True if it creates Megatron-Core's groups of devices.
        module_host_s: host's seconds to gather and release a module's weights in a pass, where every module has hooks for it.
        host_threads: threads of a process while the host updates offloaded state, if a node has several: ``one`` by default of
            PyTorch's launcher (``OMP_NUM_THREADS=1``), or ``all`` that its cores give each.
        host_loops: True if the host updates weights in its memory by one loop for each operation (PyTorch's Adam), not by one
            for all (DeepSpeed's).
        wide_embeddings: True if 8-bit optimizers keep the state of embeddings in 32 bits.
        defaults: values of open choices of a strategy by name, such as ``loss``. ``compiled_defaults``: those that differ where
            it compiles.
        examples: values of choices that its examples of networks on sequences state, by name. They are taken where a question
            leaves these choices open (``usual_choices``).
        tool: whose names of settings its users write, a key of ``choices.synonyms.TOOLS``; empty: none are declared.
        emits: target of ``plan --emit`` that writes for it; empty: none does.
        compiled: True if ``torch.compile`` runs, which the user or the framework chooses (``under_compiler``).
        sources: where each statement comes from.
        about: sentences that say what the framework does, for ``--why``.
    """

    name: str
    title: str
    level: SoftwareLevel = "ordinary"
    graphs: bool = False
    compiled_graphs: bool = False
    compiles: bool = False
    attention: str = ""
    experts: Experts = "grouped"
    upcasts: bool = False
    fuses: bool = False
    reduce_buckets: float = 0.0
    live_weights: float = 0.0
    fragments: float = 0.0
    stream_pools: bool = False
    megatron: bool = False
    module_host_s: float = 0.0
    host_threads: HostThreads = "one"
    host_loops: bool = False
    wide_embeddings: bool = False
    compiled: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)
    compiled_defaults: Mapping[str, Any] = field(default_factory=dict)
    tool: str = ""
    emits: str = ""
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    about: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UserError(f"framework {self.name}: level {shown(self.level)}", f"give one of {', '.join(LEVELS)}")

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_name, (self.name, self.compiled)

    @property
    def plain(self) -> bool:
        """True for the two plainest frameworks, which are named by their level."""
        return self.name in LEVELS

    def under_compiler(self, compiles: bool = True) -> Framework:
        """Return the framework with its blocks compiled, or not."""
        return _of_name(self.name, compiles)

    def settles(self, choice: str, value: Any) -> Any:
        """Return the value of a strategy's choice, or the default of the framework if the choice is open."""
        if self.compiled and choice in self.compiled_defaults:
            return value or self.compiled_defaults[choice]
        return value or self.defaults.get(choice, value)


@cache
def _read() -> Mapping[str, Framework]:
    """Read all frameworks. The reader of TOML is imported only in this function."""
    import tomllib

    text = files("paceline.strategy.frameworks").joinpath("frameworks.toml").read_text(encoding="utf-8")
    made: dict[str, Framework] = {}
    known = {entry.name for entry in fields(Framework)}
    tables = tomllib.loads(text)
    for name, own in tables.items():
        shared = {key: value for key, value in tables.get(own.get("like", ""), {}).items() if key != "aliases"}
        table = {key: value for key, value in {**shared, **own}.items() if key != "like"}
        unknown_keys = table.keys() - known
        assert not unknown_keys, f"frameworks.toml, {name}: no field {sorted(unknown_keys)}"
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        for key in ("defaults", "compiled_defaults", "examples"):
            if key in values:
                values[key] = MappingProxyType(values[key])
        made[name] = Framework(name=name, **values)
    return MappingProxyType(made)


FRAMEWORKS: Mapping[str, Framework] = _read()
"""All frameworks by name."""
ORDINARY, TUNED = FRAMEWORKS["ordinary"], FRAMEWORKS["tuned"]
ALIASES: Mapping[str, str] = MappingProxyType({alias: f.name for f in FRAMEWORKS.values() for alias in f.aliases})
"""Other names of frameworks, as users write them."""


def framework_of(value: object) -> Framework:
    """Return the framework that a value or a name means. Raises UserError for another one."""
    if isinstance(value, Framework):
        return value
    if not isinstance(value, str):
        raise UserError(f"framework={shown(value)}", f"give one of {', '.join(FRAMEWORKS)}")
    if value in FRAMEWORKS:
        return FRAMEWORKS[value]
    name = known_name("framework", value, tuple(FRAMEWORKS), ALIASES, few=len(FRAMEWORKS))
    return FRAMEWORKS[ALIASES.get(name, name)]


@cache
def _of_name(name: str, compiled: bool) -> Framework:
    """Return a framework by name, the same object each time."""
    return replace(FRAMEWORKS[name], compiled=True) if compiled else FRAMEWORKS[name]
