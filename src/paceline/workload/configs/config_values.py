"""Values of a Hugging Face configuration, each checked when it is read.

Keys that an architecture lets a file leave out have the defaults of its configuration class in ``transformers`` 5.23. Widths
and numbers of layers, heads and tokens have no defaults here: a file without them is incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import UserError, shown
from paceline.workload.builders.attention import SlidingWindow

Config = Mapping[str, Any]
TRACE = "trace the module: write a function that returns it, and name it module:function"
MOST_LAYERS, LARGEST = 2000, 1 << 40
"""The most blocks, and the largest width or vocabulary, that a configuration may have: a file is given by anybody, and each
block takes time and memory."""
_FULL = "full_attention"


class NotRead(UserError):
    """Error for a configuration without a mistake that the tables here cannot express, or that relies on defaults."""


def number(config: Config, *names: str, default: int | None = None) -> int:
    """Return the value of the first of ``names`` in the configuration, an integer from 1 up.

    Args:
        default: value if all are missing; None makes this an error.
    """
    for name in names:
        value = config.get(name)
        if value is not None:
            most = MOST_LAYERS if name.endswith(("layer", "layers")) else LARGEST
            if type(value) is not int or not 1 <= value <= most:
                raise UserError(f"{name} {shown(value)} in the configuration", f"it is a whole number from 1 to {most:,}")
            return value
    if default is not None:
        return default
    raise NotRead(f"the configuration has no {names[0]}", "give a whole config.json")


def flag(config: Config, name: str, default: bool) -> bool:
    """Return the value of ``name``, true or false."""
    value = config.get(name)
    if value is not None and type(value) is not bool:
        raise UserError(f"{name} {value!r} in the configuration", "it is true or false")
    return default if value is None else value


def drops(config: Config, *names: str, default: float = 0.0) -> bool:
    """Return whether any of the shares ``names`` is above 0; ``default`` applies to each."""
    shares = [default if config.get(name) is None else config[name] for name in names]
    if any(type(share) not in (int, float) for share in shares):
        raise UserError(f"a share that is no number among {', '.join(names)} of the configuration", "give 0 to 1")
    return any(share > 0 for share in shares)


def refuse(config: Config, **plain: Any) -> None:
    """Refuse settings that would change the layer table of this kind of model; each has its usual value."""
    for name, usual in plain.items():
        if config.get(name, usual) not in (usual, None):
            raise NotRead(f"{name} {config[name]!r} in the configuration is not known here", TRACE)


def sliding_window(config: Config, *, full_every: int = 0, default: int = 0) -> SlidingWindow | None:
    """Return which blocks attend only to the nearest tokens.

    Args:
        full_every: interval of the blocks that attend to all tokens, if ``layer_types`` is missing.
        default: tokens of the window if the configuration does not state them; 0: no window.
    """
    kinds = list(config.get("layer_types") or ())
    if kinds:
        full_every = kinds.index(_FULL) + 1 if _FULL in kinds else 0
        if set(kinds) == {_FULL}:
            return None
        if unknown := sorted(set(map(str, kinds)) - {_FULL, "sliding_attention"}):
            raise NotRead(f"blocks of {unknown[0]} in layer_types of the configuration are not known here", TRACE)
    if not flag(config, "use_sliding_window", True) or ("sliding_window" in config and not config["sliding_window"]):
        return None
    tokens = number(config, "sliding_window", default=default)
    if not tokens:
        return None
    window = SlidingWindow(tokens, full_every)
    if any((kind == _FULL) == bool(window.of_block(i)) for i, kind in enumerate(kinds)):
        raise NotRead("blocks of a sliding window that follow no period in layer_types", TRACE)
    return window
