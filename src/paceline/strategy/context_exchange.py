"""Exchanges of context parallelism and of expert parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

from paceline.strategy.choices.values import Value


class ContextExchange(Value):
    """Exchange that gives attention the keys and values of other devices' tokens.

    Attributes:
        passes_around: True if keys and values pass around a ring; False if heads are swapped for tokens.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    passes_around: ClassVar[bool] = False


@final
class ContextRing(ContextExchange):
    """Ring in which keys and values pass around all devices of a group."""

    __slots__ = ()
    name = "ring"
    passes_around = True


@final
class ContextSwap(ContextExchange):
    """All-to-all in which each device gets all tokens of some heads, and swaps back after attention."""

    __slots__ = ()
    name = "all_to_all"


class ExpertExchange(Value):
    """Exchange that sends tokens to their experts.

    Attributes:
        once_per_node: True if a token goes to each node once, which copies it to its experts there.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    once_per_node: ClassVar[bool] = False


@final
class TokenToEachExpert(ExpertExchange):
    """Exchange of one copy of a token for each of its experts."""

    __slots__ = ()
    name = "all_to_all"


@final
class TokenOnceToNode(ExpertExchange):
    """Exchange of one copy of a token for each node (DeepSeek-AI, DeepEP, and Megatron-Core's flexible dispatcher;
    arXiv:2412.19437, section 3.2.2).
    """

    __slots__ = ()
    name = "once_per_node"
    once_per_node = True


CONTEXT_RING, CONTEXT_SWAP = ContextRing(), ContextSwap()
TO_EACH_EXPERT, ONCE_TO_NODE = TokenToEachExpert(), TokenOnceToNode()
CONTEXT_EXCHANGES: Mapping[str, ContextExchange] = ContextExchange.known
EXPERT_EXCHANGES: Mapping[str, ExpertExchange] = ExpertExchange.known
