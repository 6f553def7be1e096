"""What the backward pass computes again so that the forward pass need not keep it.

``full``: whole blocks, of which only the inputs are kept (Chen et al. 2016, arXiv:1604.06174). ``selective``: what takes much
memory and few operations, which is core attention: scores, softmax, dropout and the weighted sum (Korthikanti et al. 2022,
arXiv:2205.05198, section 5). A fused kernel of attention keeps no scores, so nothing is left to recompute there.
``selective:mlp,layernorm`` names other parts, as Megatron-Core's ``--recompute-modules`` does. ``selective:op`` is torchtitan's
policy by operation: the results of attention and of every other product are kept, all else of a block is recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import UserError, shown, unknown

Kind = Literal["none", "selective", "full"]
RECOMPUTATIONS: tuple[Kind, ...] = get_args(Kind)
CORE = "core_attn"
BY_OPERATION = "op"
MODULES = (CORE, "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj", BY_OPERATION)
"""What ``selective`` may recompute; ``core_attn`` where nothing is named. ``mlp`` is the feed-forward network of a block that
has no experts, ``moe`` all of the experts' part with its exchanges, ``moe_act`` what lies between their products,
``mla_up_proj`` the queries, keys and values of latent attention."""
_MODULE_ALIASES = {"norm": "layernorm"}
_ALIASES = {"yes": "full", "true": "full", "no": "none", "false": "none"}


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What is recomputed.

    Attributes:
        modules: of ``selective``, names of ``MODULES``.
        layers: blocks of each part of a pipeline in which it happens; 0: in all.
    """

    kind: Kind = "none"
    modules: tuple[str, ...] = ()
    layers: int = 0

    @classmethod
    def of(cls, choice: object, layers: int = 0) -> Recomputation:
        """From a choice as ``recompute_choice`` takes it. Raises UserError as that does."""
        kind, _, modules = recompute_choice(choice).partition(":")
        named = tuple(modules.split(",")) if modules else (CORE,) if kind == "selective" else ()
        return cls(kind, named, layers)  # type: ignore[arg-type]


NOTHING = Recomputation()
FULL = Recomputation("full")


def recompute_choice(given: object) -> str:
    """The choice by its one name: ``none``, ``full``, ``selective``, ``selective:mlp,layernorm``.

    Args:
        given: such a name; ``True`` and ``yes`` are ``full``, ``False`` and ``no`` are ``none``.

    Raises:
        UserError: no such choice or part; ``op`` beside another part.
    """
    if isinstance(given, bool):
        return "full" if given else "none"
    if not isinstance(given, str):
        raise UserError(f"recompute={shown(given)}", f"give {', '.join(RECOMPUTATIONS)}, or True or False")
    kind, _, parts = given.partition(":")
    kind = _ALIASES.get(kind.casefold(), kind)
    if kind not in RECOMPUTATIONS:
        raise unknown("recomputation", given, (*RECOMPUTATIONS, "yes", "no"))
    if not parts:
        return kind
    if kind != "selective":
        raise UserError(f"recompute={shown(given)}: only selective recomputation names parts", "write selective:mlp")
    names = {_MODULE_ALIASES.get(name.strip(), name.strip()) for name in parts.split(",")}
    for name in sorted(names):
        if name not in MODULES:
            raise unknown("part to recompute", name, MODULES)
    if BY_OPERATION in names and len(names) > 1:
        raise UserError(f"recompute={shown(given)}: op decides for the whole block", "write selective:op alone")
    return kind if names == {CORE} else f"{kind}:{','.join(name for name in MODULES if name in names)}"
