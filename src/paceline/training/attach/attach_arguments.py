"""Arguments of ``attach``, and their conversion to an exchange and options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from paceline.errors import UserError, unknown
from paceline.names import likeliest
from paceline.strategy import COMPRESSIONS, DenseRule, GradientExchange
from paceline.strategy.choices.choice import declared
from paceline.strategy.choices.choice_values import WholeNumber
from paceline.strategy.choices.values import plain as name_or_value
from paceline.training.attach.attach_options import CANDIDATES, AttachOptions, is_names, is_number, is_whole, plain
from paceline.training.attach.auto import exchanges_to_try

RUN = {f.name: f.default for f in fields(AttachOptions)}
"""Fields of ``AttachOptions`` with their defaults."""
EXCHANGE: Mapping[str, Any] = {
    **{f.name: name_or_value(f.default) for f in fields(GradientExchange) if f.name not in ("compression", "options")},
    "ranks_per_node": None,
    "min_elements": None,
    "dense": (),
}
"""Choices of ``GradientExchange`` that keywords can name, with their defaults. ``ranks_per_node`` is the launcher's by default;
``min_elements`` and ``dense`` are short for a ``DenseRule``."""
OF_COMPRESSIONS = frozenset(option.name for compression in COMPRESSIONS.values() for option in compression.options)
"""Options of all compressions, which keywords can name."""
_OF_RULE = ("min_elements", "dense")
"""Keywords that are short for a ``DenseRule``."""


def _whole_number(name: str, least: int) -> tuple[Callable[[Any], bool], str]:
    """Return the check of a whole number, or of None if that is the default."""
    return (lambda v: is_whole(v, least) or v is EXCHANGE[name] is None), f"give a whole number from {least} on"


_LEGAL: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **{n: (lambda v: isinstance(v, str), "give a name") for n, usual in EXCHANGE.items() if isinstance(usual, str)},
    **{n: (lambda v: isinstance(v, bool), "give True or False") for n, usual in EXCHANGE.items() if isinstance(usual, bool)},
    **{
        item.name: _whole_number(item.name, item.values.least)
        for item in declared(GradientExchange)
        if isinstance(item.values, WholeNumber)
    },
    "clip": (lambda v: v is None or is_number(v, 1e-3, 1e6), "give standard deviations, 1e-3 to 1e6, or None"),
    "dense": (is_names, "give a list of patterns"),
    "dense_rule": (lambda v: v is None or isinstance(v, DenseRule), "give a paceline.strategy.DenseRule"),
    "min_elements": (lambda v: v is None or is_whole(v, 0), "give a whole number from 0 on"),
}
"""Checks of keywords, with the texts of their errors. ``GradientExchange`` checks the others."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of ``attach``. Its methods raise UserError, so that all ranks can compare first and raise together.

    Attributes:
        compression: a name, or the whole exchange.
        run: the options that ``keywords`` change; None: the defaults.
        keywords: fields of ``AttachOptions``, choices of the exchange, and options of the compression, by name.
    """

    compression: str | GradientExchange
    run: AttachOptions | None
    keywords: Mapping[str, Any]

    @property
    def exchange_keywords(self) -> dict[str, Any]:
        """All choices of ``EXCHANGE``, given or default."""
        return {**EXCHANGE, **{name: value for name, value in self.keywords.items() if name in EXCHANGE}}

    @property
    def compression_options(self) -> dict[str, Any]:
        """Keywords that belong to the compression."""
        return {name: value for name, value in self.keywords.items() if name not in EXCHANGE and name not in RUN}

    @property
    def names_exchange(self) -> bool:
        """True if the caller has chosen the exchange pattern."""
        return isinstance(self.compression, GradientExchange) or bool(self.keywords.get("exchange"))

    def compared(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks, legal or not, by name. Nodes may have different numbers of ranks."""
        name = self.compression.compression.name if isinstance(self.compression, GradientExchange) else self.compression
        run = {field: getattr(self.run, field) for field in RUN} if self.run else RUN
        given = {"compression": name, "options": self.compression_options, **self.exchange_keywords, **run}
        given |= {name: value for name, value in self.keywords.items() if name in RUN}
        del given["ranks_per_node"]
        return {**given, "grad_scaler": given["grad_scaler"] is not None}

    def options(self) -> AttachOptions:
        """Options of the run."""
        if self.run is not None and not isinstance(self.run, AttachOptions):
            raise UserError(f"options={self.run!r}", "give a paceline.AttachOptions")
        return replace(self.run or AttachOptions(), **{n: v for n, v in self.keywords.items() if n in RUN})

    def exchanges(self, workers: int) -> list[GradientExchange]:
        """Exchange to run, with this machine's ranks of a node; for ``auto`` the exchanges to try, dense first."""
        self._check()
        options = self.options()
        name = self.compression.compression.name if isinstance(self.compression, GradientExchange) else self.compression
        if name == "auto":
            return self._candidates(options, workers)
        if tuple(options.candidates) != CANDIDATES:
            raise UserError(f"{name} has no candidates", "leave candidates out: only auto takes them")
        if name in COMPRESSIONS and COMPRESSIONS[name].low_rank and options.noise_scale:
            raise UserError(f"{name} gives no gradients to measure", "measure the noise scale with another compression")
        return [self._exchange(workers)]

    def sharded_exchange(self, owners: int) -> GradientExchange:
        """Return the exchange for a sharded model, over ``owners`` ranks."""
        self._check()
        if self.compression == "auto" or tuple(self.options().candidates) != CANDIDATES:
            raise UserError("auto measures the steps of DistributedDataParallel only", "name a compression")
        return self._exchange(owners)

    def _check(self) -> None:
        """Raise UserError for the first value of a wrong type, with the legal ones."""
        if not isinstance(self.compression, str | GradientExchange):
            raise UserError(f"compression={self.compression!r}", "give a name or a GradientExchange")
        given = self.exchange_keywords
        for name, (is_legal, legal) in _LEGAL.items():
            if not is_legal(given[name]):
                raise UserError(f"{name}={given[name]!r}", legal)

    def _exchange(self, workers: int) -> GradientExchange:
        """Return the given exchange or the one of the keywords, with the ranks of a node."""
        value, result = self.compression, self.named_exchange()
        if not result.exchange.uses_nodes:
            return result
        per_node = self.keywords.get("ranks_per_node")
        if isinstance(value, GradientExchange):
            per_node = value.ranks_per_node if value.ranks_per_node > 1 else None
        return replace(result, ranks_per_node=_ranks_per_node(per_node, workers))

    def named_exchange(self) -> GradientExchange:
        """Return the given exchange or the one of the keywords. A node has 1 rank unless they name another number."""
        self._check()
        value, given, options = self.compression, self.exchange_keywords, self.compression_options
        if isinstance(value, GradientExchange):
            twice = [name for name, usual in EXCHANGE.items() if _differs(given[name], usual)] + [*options]
            if twice:
                verb = "belongs" if len(twice) == 1 else "belong"
                raise UserError(f"{', '.join(twice)} {verb} to the GradientExchange", "set it there, not beside it")
            return GradientExchange.from_json(plain(value.to_json()))
        if value not in COMPRESSIONS:
            raise unknown("compression", value, [*COMPRESSIONS, "auto"])
        self._check_names()
        short = {"ranks_per_node": int(given["ranks_per_node"] or 1), "dense_rule": self._rule(value)}
        chosen = {name: plain(given[name]) for name in EXCHANGE if name not in _OF_RULE}
        return GradientExchange(value, options=plain(options), **{**chosen, **short})

    def _check_names(self) -> None:
        """Raise UserError for a keyword that no compression takes and that is similar to one of ``attach``."""
        for name in self.compression_options.keys() - OF_COMPRESSIONS:
            meant = likeliest(name, [*OF_COMPRESSIONS, *EXCHANGE, *RUN])
            if meant and meant not in OF_COMPRESSIONS:
                raise UserError(f"attach takes no {name}", f"did you mean {meant}?")

    def _candidates(self, options: AttachOptions, workers: int) -> list[GradientExchange]:
        """Return the exchanges that ``auto`` tries, each with the keywords that apply to it."""
        given = self.exchange_keywords
        if self.compression_options or given["exchange"] or given["codec_at"]:
            raise UserError("auto chooses exchange, place and options itself", "leave them out, or name a compression")
        untaken = (item.name for item in declared(GradientExchange) if item.name in EXCHANGE and not item.train.auto)
        refused = [name for name in untaken if given[name] != EXCHANGE[name]]
        if refused:
            raise UserError(f"auto compares exchanges as they usually are, without {refused[0]}", "name a compression")
        per_node = _ranks_per_node(given["ranks_per_node"], workers)

        def make(name: str, exchange: str) -> GradientExchange:
            rule = self._rule(name) if COMPRESSIONS[name].rule is not None else None
            clip = plain(given["clip"]) if COMPRESSIONS[name].clips else None
            result = GradientExchange(name, exchange, clip=clip, dense_rule=rule)
            if result.exchange.uses_nodes:
                result = replace(result, ranks_per_node=per_node)
            pulls = given["compress_pull"] or not result.exchange.has_pull
            return result if pulls else replace(result, compress_pull=False)

        return exchanges_to_try(options.candidates, make, workers, per_node)

    def _rule(self, compression: str) -> DenseRule | None:
        """Return the compression's rule for dense tensors with the caller's values; None if the caller gave none."""
        given = self.exchange_keywords
        if given["min_elements"] is None and not len(given["dense"]):
            return given["dense_rule"]  # type: ignore[no-any-return]
        rule = given["dense_rule"] or COMPRESSIONS[compression].rule or DenseRule()  # GradientExchange may refuse it
        least = rule.min_elements if given["min_elements"] is None else int(given["min_elements"])
        return replace(rule, min_elements=least, names=(*rule.names, *given["dense"]))


def _differs(value: Any, usual: Any) -> bool:
    return bool(len(value)) if isinstance(usual, tuple) else bool(value != usual)


def _ranks_per_node(given: int | None, workers: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", workers)) if given is None else int(given)
