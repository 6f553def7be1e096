"""Activation recomputation: the backward pass computes activations again instead of storing them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, final

from paceline.errors import UserError, shown, unknown

CORE = "core_attn"
BY_OPERATION = "op"
MODULES = (CORE, "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj", BY_OPERATION)
"""Parts of a block that can be recomputed.

``core_attn`` is the default. ``mlp`` is the feed-forward network of a block without experts. ``moe`` is the whole experts' part
with its exchanges, ``moe_act`` the activations between their products. ``mla_up_proj`` is the queries, keys and values of
latent attention. ``op`` is torchtitan's policy by operation: the results of attention and of every second product are kept, and
the rest of a block is recomputed.
"""
TRAINED_MODULES = (CORE, "mlp", BY_OPERATION)
"""Parts that ``train`` recomputes, by ``torch.utils.checkpoint``. The others need kernels that store their inputs alone."""
_MODULE_ALIASES = {"norm": "layernorm"}
_ALIASES = {"yes": "full", "true": "full", "1": "full", "no": "none", "false": "none", "0": "none"}
"""Other names; tables of jobs have numbers too."""


@dataclass(frozen=True, slots=True, eq=False)
class Recompute(ABC):
    """Activations that the backward pass computes again.

    Attributes:
        layers: number of recomputed blocks in each part of a pipeline; 0: all.
        kind: first part of the name, Megatron-Core's granularity.
        whole_blocks: True if whole blocks are recomputed.
    """

    layers: int = 0
    kind: ClassVar[str]
    whole_blocks: ClassVar[bool] = False

    @staticmethod
    def of(choice: object, layers: int = 0) -> Recompute:
        """Return the value of a choice.

        Args:
            choice: ``none``, ``full``, ``selective``, or ``selective:mlp,layernorm``. ``True`` and ``yes`` are ``full``,
                ``False`` and ``no`` are ``none``. A value is returned as it is.

        Raises:
            UserError: no such choice or part; ``op`` with another part.
        """
        if isinstance(choice, bool):
            choice = "full" if choice else "none"
        if not isinstance(choice, Recompute):
            if not isinstance(choice, str):
                raise UserError(f"recompute={shown(choice)}", f"give {', '.join(RECOMPUTES)}, or True or False")
            choice = _named(choice)
        return choice.in_layers(layers) if layers else choice

    @property
    def name(self) -> str:
        """The choice as the user writes it."""
        return self.kind

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of ``MODULES`` that are computed again; empty for whole blocks and for none."""
        return ()

    @property
    def by_operation(self) -> bool:
        """True if operations of a block are kept or computed again one by one."""
        return BY_OPERATION in self.parts

    def in_layers(self, layers: int) -> Recompute:
        """Return this recomputation in the given number of blocks; 0: all."""
        return replace(self, layers=layers)

    @abstractmethod
    def __bool__(self) -> bool: ...

    if not TYPE_CHECKING:  # a type checker refuses comparisons with names, as of every value (``values.Value``)

        def __eq__(self, other: object) -> bool:
            if isinstance(other, str):
                return other == self.name
            same = type(self) is type(other)
            return same and all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))

        def __hash__(self) -> int:
            return hash(self.name)

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True, slots=True, eq=False)
class NoRecompute(Recompute):
    """No recomputation: all activations are kept."""

    kind: ClassVar[str] = "none"

    def __bool__(self) -> bool:
        return False


@final
@dataclass(frozen=True, slots=True, eq=False)
class SelectiveRecompute(Recompute):
    """Selective recomputation: parts of a block that take much memory and few operations.

    Core attention is scores, softmax, dropout and the weighted sum (Korthikanti et al. 2022, arXiv:2205.05198, section 5). A
    fused attention kernel keeps no scores, so it has nothing to recompute. Other parts have the names of Megatron-Core's
    ``--recompute-modules``.
    """

    modules: tuple[str, ...] = (CORE,)
    kind: ClassVar[str] = "selective"

    @property
    def name(self) -> str:
        """The choice as the user writes it, with its parts in the order of ``MODULES``."""
        return self.kind if self.modules == (CORE,) else f"{self.kind}:{','.join(self.modules)}"

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of ``MODULES``."""
        return self.modules

    def __bool__(self) -> bool:
        return True


@final
@dataclass(frozen=True, slots=True, eq=False)
class FullRecompute(Recompute):
    """Full recomputation: only the inputs of whole blocks are kept (Chen et al. 2016, arXiv:1604.06174)."""

    kind: ClassVar[str] = "full"
    whole_blocks: ClassVar[bool] = True

    def __bool__(self) -> bool:
        return True


NO_RECOMPUTE, SELECTIVE_RECOMPUTE, FULL_RECOMPUTE = NoRecompute(), SelectiveRecompute(), FullRecompute()
RECOMPUTES = {value.kind: value for value in (NO_RECOMPUTE, SELECTIVE_RECOMPUTE, FULL_RECOMPUTE)}
"""Values by name; ``selective`` takes parts."""


@lru_cache(maxsize=256)
def _named(text: str) -> Recompute:
    """Return the recomputation with a name. Raises UserError as ``Recompute.of``."""
    kind, _, listed = text.partition(":")
    kind = _ALIASES.get(kind.casefold(), kind.casefold())
    value = RECOMPUTES.get(kind)
    if value is None:
        raise unknown("recomputation", text, (*RECOMPUTES, "yes", "no"))
    if not listed:
        return value
    if value is not SELECTIVE_RECOMPUTE:
        raise UserError(f"recompute={shown(text)}: only selective recomputation names parts", "write selective:mlp")
    names = {_MODULE_ALIASES.get(name.strip(), name.strip()) for name in listed.casefold().split(",")}
    for name in sorted(names):
        if name not in MODULES:
            raise unknown("part to recompute", name, MODULES)
    if BY_OPERATION in names and len(names) > 1:
        raise UserError(f"recompute={shown(text)}: op decides for the whole block", "write selective:op alone")
    return SelectiveRecompute(modules=tuple(name for name in MODULES if name in names))
