"""Options of a run with an attached exchange: seed, checks, time limit, measurements."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from paceline.errors import UserError, unknown
from paceline.strategy import GradientExchange
from paceline.strategy.choices.choice_values import Bits
from paceline.strategy.compression.compressions import COMPRESSIONS
from paceline.strategy.mesh_rules import GATHER_BITS, GATHER_FORMATS

CANDIDATES = tuple(c.name for c in sorted(COMPRESSIONS.values(), key=lambda c: c.auto_rank) if c.auto_rank)
"""Compressions that ``auto`` tries next to dense, in order."""
TIMEOUT_S = 300.0
"""A step waits for its slowest rank, and a data loader's pause or a checkpoint of one rank can take minutes. A lost process is
noticed at once. This time is for a silent process and a cut link; with gloo PyTorch would wait 1800 s for them."""


def is_whole(value: object, least: float = -math.inf) -> bool:
    """Return True if ``value`` is a whole number of at least ``least``, NumPy's included, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: object, least: float, most: float) -> bool:
    """Return True if ``value`` is a real number from ``least`` to ``most``, NumPy's included, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and least <= float(value) <= most  # False for NaN


def is_names(value: object) -> bool:
    """Return True if ``value`` is a sequence of strings and no string."""
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def plain(value: Any) -> Any:
    """Convert NumPy's numbers to Python's, because torch does not load NumPy's by default."""
    if isinstance(value, Mapping):
        return {name: plain(of) for name, of in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _check(is_legal: Callable[[Any], bool], legal: str, everywhere: bool = False) -> dict[str, Any]:
    """Check of a field, the text of its error, and whether every exchange takes it or only hooks of gradients."""
    return {"is_legal": is_legal, "legal": legal, "everywhere": everywhere}


_SEED = _check(is_whole, "give a whole number", everywhere=True)
_CHECK_EVERY = _check(lambda v: is_whole(v, 0), "give a whole number of steps; 0 never checks", everywhere=True)
_TIMEOUT = _check(lambda v: is_number(v, 1e-3, 1e9), "give seconds, 1e-3 to 1e9", everywhere=True)
_SCALER = _check(lambda v: v is None or callable(getattr(v, "get_scale", None)), "give a torch.amp.GradScaler")
_FLAG = _check(lambda v: isinstance(v, bool), "give True or False")
_BITS = _check(is_whole, f"give one of {', '.join(map(str, GATHER_BITS))}")
_FORMAT = _check(lambda v: v in GATHER_FORMATS, f"give {' or '.join(GATHER_FORMATS)}")


@dataclass(frozen=True, kw_only=True)
class AttachOptions:
    """Options of an attached exchange that are not choices of the exchange: seed, checks, time limit, measurements.

    Attributes:
        seed: seed of the stochastic rounding; the same on every rank.
        check_every: steps between two comparisons of a checksum of weights and buffers over the ranks; 0 never compares.
            Buffers that DDP broadcasts must be equal after that; others are reported once if they differ. FSDP2 broadcasts
            none, and only weights that HSDP's replicas hold twice are compared. With local steps: exchanges, not steps.
        timeout_s: seconds that an exchange waits for a slow rank or a cut link before it fails, on CPUs FSDP2's gather of
            weights too. About ten seconds later every remaining rank raises LostRank.
        grad_scaler: a ``torch.amp.GradScaler``: residuals follow its factor.
        candidates: compressions that ``auto`` tries.
        noise_scale: measure the gradient noise scale. It costs one more pass over the gradients before and after the exchange,
            and one scalar that no step waits for. ``hook.noise.scale.batch(samples_of_a_rank)`` gives it in samples. Only for
            ``dense`` and ``bf16``: the error of another compression counts as signal and makes the scale too small.
        gather_bits: bits of a gathered weight of an FSDP2 model: 16 (bfloat16) or 8 (int8 with a scale a block). 0 gathers
            weights as they are, and so does 32 with fp32 or 16 with 16 bits.
        gather_format: format of weights gathered in 8 bits: ``int8``, or ``fp8`` (e4m3 with a power of two a block).

    Raises:
        UserError: a value of a wrong type or out of range, with the legal ones.
    """

    seed: int = field(default=0, metadata=_SEED)
    check_every: int = field(default=100, metadata=_CHECK_EVERY)
    timeout_s: float = field(default=TIMEOUT_S, metadata=_TIMEOUT)
    grad_scaler: Any = field(default=None, metadata=_SCALER)
    candidates: Sequence[str] = field(default=CANDIDATES, metadata=_check(is_names, "give a list of names"))
    noise_scale: bool = field(default=False, metadata=_FLAG)
    gather_bits: int = field(default=0, metadata=_BITS)
    gather_format: str = field(default=GATHER_FORMATS[0], metadata=_FORMAT)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not option.metadata["is_legal"](value):
                raise UserError(f"{option.name}={value!r}", option.metadata["legal"])
            object.__setattr__(self, option.name, plain(value))
        object.__setattr__(self, "timeout_s", float(self.timeout_s))
        Bits(GATHER_BITS).check(self.gather_bits, "gather_bits")
        if self.gather_format != GATHER_FORMATS[0] and self.gather_bits != 8:
            raise UserError(f"gather_format {self.gather_format} without gather_bits=8", "give gather_bits=8")

    @property
    def gathered_as(self) -> int | str:
        """Bits of a gathered weight, with the format if it is not the default."""
        usual = self.gather_format == GATHER_FORMATS[0]
        return self.gather_bits if usual else f"{self.gather_bits} {self.gather_format}"

    @staticmethod
    def everywhere(
        caller: str, options: AttachOptions | None, changes: Mapping[str, Any], others: Iterable[str] = ()
    ) -> AttachOptions:
        """Return the options of a caller that takes only seed, checks and time limit, with single fields changed.

        Args:
            caller: name of the function or class in errors.
            others: further arguments of the caller, which errors list too.

        Raises:
            UserError: an unknown name, an illegal value, or an option of hooks that exchange gradients.
        """
        names = [option.name for option in fields(AttachOptions) if option.metadata["everywhere"]]
        for name in changes:
            if name not in names:
                raise unknown(f"argument of {caller}", name, [*others, *names])
        changed = replace(options or AttachOptions(), **changes)
        for option in fields(changed):
            if option.name not in names and getattr(changed, option.name) != option.default:
                raise UserError(f"{caller} takes no {option.name}", f"legal: {', '.join(names)}")
        return changed


def check_runs(x: GradientExchange, device: str = "") -> None:
    """Raise UserError if training cannot execute an exchange that a prediction can describe.

    Args:
        device: kind of the device with the gradients, ``cpu`` or another; empty: not yet known.
    """
    from paceline.codecs.registry import BY_NAME  # codecs and a lab are loaded for a run alone
    from paceline.lab.adding_switch import VARIABLE

    if not x.compression.low_rank and x.compression.codec_name not in BY_NAME:
        raise UserError(f"training cannot run compression {x.compression}, which has no codec", "name another, or predict it")
    if x.servers > 1:
        raise UserError(f"training runs one server, not {x.servers}", "take exchange sharded: every rank is a server there")
    if x.exchange.uses_switch and not os.environ.get(VARIABLE):
        raise UserError(
            "exchange switch needs a switch that adds, and there is none between these workers",
            "run in a lab that has one: paceline lab up --switch; or predict it",
        )
    x.codec_at.check_runs(x, device)
