"""Settings of the gradient exchange, shared by prediction, ``attach``, ``train``, checkpoints and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any

from paceline.errors import UserError, check_name, shown
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import (
    FIGURES,
    IN_SCRIPTS,
    ONE_OF,
    RUNS,
    RUNS_IN_AUTO,
    TRAFFIC,
    WRITTEN,
    EmitRule,
    Need,
    Searched,
    check_needs,
    check_values,
    choice,
    declared,
    plain_values,
)
from paceline.strategy.choices.choice_values import Bits, Compound, Flag, OneOf, PartOption, WholeNumber
from paceline.strategy.choices.values import ByName
from paceline.strategy.codec_place import IN_CARD, ON_HOST, PLACES, USUAL_PLACE, Place
from paceline.strategy.compression.compression import WARM_DENSITY, Compression, DenseRule
from paceline.strategy.compression.compression_options import Given, Values, options_text, parse_options, resolve
from paceline.strategy.compression.compressions import COMPRESSIONS, DENSE
from paceline.strategy.compression.dense_rule_text import parse_rule, rule_text
from paceline.strategy.dense_bits import BITS, BITS_FIX, check_dense_bits
from paceline.strategy.exchanges import EXCHANGES, OF_HOSTS, Exchange, carriers
from paceline.strategy.worker_counts import check_nodes, check_servers

RESIDUAL_PLACES: Mapping[str, Place] = {ON_HOST.name: ON_HOST}
"""Values of ``residuals_at`` by name; empty: the codec's place."""
CLIP = 2.5  # standard deviations; the TernGrad paper's value for every network, data set and optimizer (section 3.3)
_CLIPS = (1e-3, 1e6)


_ONE_WAY = ", ".join(name for name, exchange in EXCHANGES.items() if exchange.has_pull)
_SERVERS = "workers that hold the parameters, for exchange parameter_server"
_REMEMBERING = [name for name, described in COMPRESSIONS.items() if described.error_feedback]
_RESIDUALS = Need(lambda x: x.description.error_feedback, "{of.compression} keeps no residuals here", "leave {name} out")
_NAMES_OF_OPTIONS = dict.fromkeys(option.name for described in COMPRESSIONS.values() for option in described.options)
_OPTIONS = "; ".join(
    f"{name} ({', '.join(described.name for described in COMPRESSIONS.values() if name in described.option_values)})"
    for name in _NAMES_OF_OPTIONS
)
"""Options of compressions, each with the compressions that take it."""
NO_COMPRESSION = {"none": "dense", "uncompressed": "dense"}
"""Other names of a gradient exchange without compression."""


def _parse_clip(text: str) -> float | None:
    """Return the clip that an option means. Raises UserError."""
    if text.casefold() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--clip {text}", "give standard deviations, such as 2.5, or none") from None


def _changed_rule(rule: DenseRule, min_elements: int | None, names: Sequence[str] | None) -> DenseRule:
    """Return the rule with the parts that are given."""
    least = rule.min_elements if min_elements is None else min_elements
    return replace(rule, min_elements=least, names=tuple(names or rule.names))


@dataclass(frozen=True)
class GradientExchange:
    """Compression with its parameters, and the exchange that carries it.

    Attributes:
        compression: one of ``COMPRESSIONS``, or its name.
        exchange: one of ``EXCHANGES``, or its name; empty takes the compression's default.
        options: parameters of the compression, such as ``{"bound": 2**-7}``; kept as pairs, only those that were given.
        clip: TernGrad clips each tensor at this many standard deviations; None does not clip. Others have no clip: None.
        dense_rule: rule for tensors that stay dense; None: the compression's rule.
        compress_pull: True if sums return encoded; False: as fp32 (``sharded``, ``parameter_server``, ``hierarchical``).
        servers: servers of ``parameter_server``: number of workers that also serve, each with an equal share of the parameters.
        ranks_per_node: ranks per node of ``hierarchical``; 1 means the number in the cluster or the launcher.
        codec_at: its place: ``host``, ``gpu``, or ``nic``, the network card (``codec_place``). Empty: the gradients' place.
        residual_bits: bits of each residual of error feedback: 32 is fp32, 16 bfloat16.
        residuals_at: place of the residuals between exchanges: ``host`` is the host's memory. Empty: the codec's place.
        dense_bits: bits of each unencoded number: 32 is fp32, 16 bfloat16 (``dense_bits``).

    Raises:
        UserError: a name that does not exist, an exchange that cannot carry the compression, an option or a choice that the
            compression or the exchange does not take, a value out of range.
    """

    compression: ByName[Compression] = choice(
        DENSE,
        OneOf("compression", COMPRESSIONS, NO_COMPRESSION),
        "{legal} (default {default})",
        metavar="C",
        example="dense",
        said=True,
        told_apart=True,
        recorded=True,
        train=RUNS,
        plan=Searched("compressions", help=ONE_OF),
        label="Compression",
        emit=EmitRule(
            "compression {value}",
            "gradients travel as they are",
            by_scripts=lambda x: True,
            by_programs=lambda x: not x.compression.compresses,
        ),
        detour=lambda x: x.compression.compresses,
        synonyms=tool_names.COMPRESSION,
    )
    exchange: ByName[Exchange] = choice(
        "",
        OneOf("exchange", EXCHANGES, empty=""),
        "{legal} (default: {default})",
        rule="the compression's",
        metavar="X",
        example="allreduce",
        said=True,
        recorded=True,
        train=RUNS,
        plan=Searched("exchanges", values=OF_HOSTS, help=ONE_OF),
        follows="compression",
        grouped_by=lambda exchange: exchange.by_engine,
        emit=EmitRule(
            "exchange {value}",
            "gradients travel by all-reduce or reduce-scatter",
            by_scripts=lambda x: True,
            by_programs=lambda x: x.exchange.by_engine,
        ),
        strategy_needs=(
            Need(
                lambda s: s.parallelism.data <= s.gradient_exchange.exchange.most_workers,
                "{of.parallelism.data:,} workers are more than exchange {value.name!r} can be predicted for",
                "give at most {value.most_workers:,} workers, or another exchange",
            ),
        ),
        detour=lambda x: not (x.exchange.by_engine or x.compression.compresses),
    )
    options: Given = choice(
        (),
        Compound(
            (
                PartOption(
                    "option",
                    "NAME=NUMBER",
                    f"a parameter of the compression, such as bound=2^-7; may be repeated: {_OPTIONS}",
                    repeated=True,
                ),
            ),
            lambda given, owner: parse_options(given[0]),
            lambda text, owner: parse_options(text.split(",")),
            options_text,
        ),
        "parameters of the compression",
        follows="compression",
        said=True,
        train=RUNS,
        emit=WRITTEN,
    )
    clip: float | None = choice(
        CLIP,
        Compound(
            (
                PartOption(
                    "clip", "SIGMAS", f"standard deviations at which terngrad clips each tensor, or none (default {CLIP:g})"
                ),
            ),
            lambda given, owner: _parse_clip(given[0]),
            lambda text, owner: _parse_clip(text),
            lambda clip: "none" if clip is None else repr(clip),
        ),
        "standard deviations at which terngrad clips each tensor",
        follows="compression",
        said=True,
        train=RUNS_IN_AUTO,
        source="Wen et al. 2017, TernGrad, arXiv:1705.07878, section 3.3",
        affects=("numerics",),
        emit=WRITTEN,
    )
    dense_rule: DenseRule | None = choice(
        None,
        Compound(
            (
                PartOption(
                    "min-elements", "N", "tensors with fewer elements stay dense (default: the compression's rule)", int
                ),
                PartOption(
                    "dense",
                    "PATTERN",
                    "further tensors that stay dense, by a pattern such as *.embedding.*; may be repeated",
                    repeated=True,
                ),
            ),
            lambda given, owner: _changed_rule(owner().dense_rule or DenseRule(), *given),
            lambda text, owner: parse_rule(text, owner().dense_rule or DenseRule()),
            rule_text,
        ),
        "which tensors stay dense",
        rule="the compression's",
        follows="compression",
        said=True,
        train=RUNS_IN_AUTO,
        emit=WRITTEN,
    )
    compress_pull: bool = choice(
        True,
        Flag(),
        f"send sums back as fp32 ({_ONE_WAY})",
        option="no-compress-pull",
        word="compress-pull",
        example="no",
        follows="exchange",
        train=RUNS_IN_AUTO,
        needs=(
            Need(
                lambda x: x.exchange.has_pull,
                "exchange {of.exchange.name!r} has no pull to send as fp32",
                f"legal: {_ONE_WAY}",
            ),
        ),
        affects=TRAFFIC,
        emit=WRITTEN,
    )
    servers: int = choice(
        1,
        WholeNumber("servers"),
        f"{_SERVERS} (default {{default}})",
        metavar="M",
        example="4",
        follows="exchange",
        needs=(
            Need(
                lambda x: x.exchange.has_servers,
                "exchange {of.exchange.name!r} has no {value} servers",
                "name exchange parameter_server",
            ),
        ),
        plan=Searched("servers", values=(1,), help=f"{_SERVERS} (default 1); may be repeated"),
        affects=FIGURES,
        emit=EmitRule("{value} parameter servers", "paceline.attach runs one"),
        strategy_needs=(check_servers,),
    )
    ranks_per_node: int = choice(
        1,
        WholeNumber("ranks a node"),
        "ranks of a node, for hierarchical (default: {default})",
        rule="the cluster's",
        metavar="N",
        example="4",
        follows="exchange",
        train=RUNS_IN_AUTO,
        needs=(
            Need(
                lambda x: x.exchange.uses_nodes,
                "exchange {of.exchange.name!r} has no nodes of {value} ranks",
                "leave ranks_per_node out, or name exchange hierarchical",
            ),
        ),
        affects=TRAFFIC,
        emit=WRITTEN,
        strategy_needs=(check_nodes,),
    )
    codec_at: ByName[Place] = choice(
        USUAL_PLACE,
        OneOf("place of the codec", PLACES, empty=USUAL_PLACE),
        "where the codec works: {legal}, the network card (default: {default})",
        rule="where the gradients live",
        metavar="PLACE",
        example=IN_CARD.name,
        title="codec {value.text}",
        listed_by_name=True,
        follows="compression",
        later=True,
        train=RUNS,
        needs=(lambda x: x.codec_at.check(x),),
        plan=Searched(
            single=True,
            help="where the codec works, of what can work there: {legal} (default: {default})",
            along=lambda x, at: {"compress_pull": False} if at == IN_CARD and x.exchange.has_servers else {},
        ),
        source="Li et al. 2018, INCEPTIONN, MICRO, section VI",
        affects=TRAFFIC,
        emit=EmitRule("a codec {value.text}", "paceline.attach runs it where the gradients live"),
    )
    residual_bits: int = choice(
        32,
        Bits(BITS, BITS_FIX),
        f"bits of a residual between exchanges ({', '.join(_REMEMBERING)}): 32, or 16 for bfloat16 by stochastic rounding "
        "(default {default})",
        metavar="N",
        example="16",
        title="residuals in bf16",
        listed_by_name=True,
        follows="compression",
        later=True,
        resumable=True,
        train=RUNS,
        needs=(_RESIDUALS,),
        plan=Searched(single=True, help="{help}"),
        affects=("time", "memory", "numerics"),
        emit=IN_SCRIPTS,
    )
    residuals_at: ByName[Place] = choice(
        USUAL_PLACE,
        OneOf("place of residuals", RESIDUAL_PLACES, empty=USUAL_PLACE),
        "where residuals lie between exchanges: host, its memory (default: {default})",
        rule="where the codec works",
        metavar="PLACE",
        example=ON_HOST.name,
        title="residuals on the host",
        listed_by_name=True,
        follows="compression",
        later=True,
        resumable=True,
        train=RUNS,
        needs=(_RESIDUALS,),
        plan=Searched(single=True, help="{help}"),
        affects=("time", "memory"),
        emit=IN_SCRIPTS,
    )
    dense_bits: int = choice(
        32,
        Bits(BITS, BITS_FIX),
        "bits of what is not compressed, such as dense tensors and PowerSGD's factors: 32, or 16 for bfloat16 "
        "(default {default})",
        metavar="N",
        example="16",
        title="the rest in bf16",
        listed_by_name=True,
        follows="compression",
        later=True,
        train=RUNS,
        needs=(check_dense_bits,),
        plan=Searched(single=True, help="{help}"),
        source="PyTorch, bf16_compress_wrapper",
        affects=TRAFFIC,
        emit=IN_SCRIPTS,
    )

    def __post_init__(self) -> None:
        check_values(self)
        described = self.compression
        object.__setattr__(self, "options", resolve(self.options, described.options, described.name))
        self._check_warmup()
        self._check_exchange(described)
        self._check_clip()
        self._check_dense_rule(described)
        check_needs(self)

    def _check_exchange(self, described: Compression) -> None:
        able = carriers(described)
        if vars(self)["exchange"] == "":
            object.__setattr__(self, "exchange", able[0])
        if self.exchange not in able:
            raise UserError(
                f"exchange {self.exchange.name!r} cannot carry {described}: {self.exchange.refusal}",
                f"legal for {described}: {', '.join(map(str, able))}",
            )

    def _check_warmup(self) -> None:
        given = dict(self.options)
        if given.get("warmup_steps") and given.get("density", 0.0) >= WARM_DENSITY:
            raise UserError(
                f"a warm-up of sparsity begins at density {WARM_DENSITY:g}, which density {given['density']:g} is not below",
                "leave warmup_steps out, or name a smaller density",
            )

    def _check_clip(self) -> None:
        clip = self.clip
        if not self.compression.clips:
            if clip is not None and not (isinstance(clip, Real) and clip == CLIP):
                raise UserError(f"{self.compression} does not clip", "leave clip out: it is TernGrad's")
            object.__setattr__(self, "clip", None)
        elif clip is not None:
            if isinstance(clip, bool) or not isinstance(clip, Real) or not _CLIPS[0] <= clip <= _CLIPS[1]:
                raise UserError(f"clip={shown(clip)}", "give standard deviations, 1e-3 to 1e6, or None")
            object.__setattr__(self, "clip", float(clip))

    def _check_dense_rule(self, described: Compression) -> None:
        if self.dense_rule is None:
            object.__setattr__(self, "dense_rule", described.rule)
        elif not isinstance(self.dense_rule, DenseRule):
            raise UserError(f"dense_rule={shown(self.dense_rule)}", "give a paceline.strategy.DenseRule")
        elif described.rule is None:
            raise UserError(f"{self.compression} treats all tensors the same", "leave dense, min_elements and dense_rule out")

    @cached_property
    def description(self) -> Compression:
        """Compression and its costs, with these options and this rule for dense tensors. A card keeps no residual."""
        assert isinstance(self.options, tuple)
        return _described(self.compression, self.options, self.dense_rule, self.codec_at is not IN_CARD)

    @property
    def placed(self) -> bool:
        """True if the cluster must offer more than devices and links: a place for codec or residuals, or a switch that adds."""
        return bool(self.codec_at or self.residuals_at or self.exchange.uses_switch)

    @property
    def is_plain(self) -> bool:
        """True if the engine all-reduces unchanged gradients."""
        return self.exchange.by_engine and not self.compression.compresses

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields: values derived from them hold functions, which cannot be pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def uncompressed(self) -> GradientExchange:
        """Return the baseline of a compression ratio: this exchange without compression, if it can carry dense gradients."""
        return GradientExchange(DENSE, self.exchange, servers=self.servers, ranks_per_node=self.ranks_per_node)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict of every choice; ``from_json`` is the inverse."""
        rule = self.dense_rule
        named = None if rule is None else {name: getattr(rule, name) for name in _RULE_FIELDS} | {"names": list(rule.names)}
        return {**plain_values(self), "options": dict(self.options), "dense_rule": named}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GradientExchange:
        """Read the output of ``to_json``, of this or an earlier version. Raises UserError for unknown or illegal choices."""
        if not isinstance(data, Mapping):
            raise UserError(f"a gradient exchange is written as a dict of its choices, {shown(data)} was given", "see to_json")
        for name in data:
            check_name("choice of a gradient exchange", name, _FIELDS)
        rule = data.get("dense_rule")
        if not isinstance(rule, Mapping):
            return cls(**data)
        for name in rule:
            check_name("field of a dense_rule", name, _RULE_FIELDS)
        return cls(**{**data, "dense_rule": DenseRule(**rule)})

    def __str__(self) -> str:
        texts = (item.described(self) for item in declared(GradientExchange))
        return ", ".join([f"{self.compression} over {self.exchange}", *filter(None, texts)])


@lru_cache(maxsize=256)
def _described(compression: Compression, options: Values, rule: DenseRule | None, remembers: bool) -> Compression:
    """Return a compression with option values, a rule for dense tensors, and error feedback only if it ``remembers``."""
    described = compression.configured(options)
    return replace(described, rule=rule, error_feedback=described.error_feedback and remembers)


RESIDUAL_CHOICES = tuple(item.name for item in declared(GradientExchange) if item.resumable)
"""Choices that may differ in a run that continues from another run's state."""
ROUTE_CHOICES = tuple(
    item.name for item in declared(GradientExchange) if "exchange" in (item.field, item.follows) or item.field == "codec_at"
)
"""Choices that decide who sends what to whom, and where it is encoded."""
_FIELDS = [item.name for item in declared(GradientExchange)]
_RULE_FIELDS = [f.name for f in fields(DenseRule)]
