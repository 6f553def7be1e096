"""The choice of adapters as a value, and the words in which a user gives it.

LoRA: Hu et al. 2021, arXiv:2106.09685. QLoRA: Dettmers et al. 2023, arXiv:2305.14314. DoRA: Liu et al. 2024, arXiv:2402.09353.
rsLoRA: Kalajdzievski 2023, arXiv:2312.03732. Names of options are those of PEFT's ``LoraConfig`` where it has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import UserError, check_count, shown, unknown
from paceline.names import fold

ATTENTION, ALL = "attention", "all-linear"
EXAMPLE = (
    "write it as r=16, or r=16,targets=q_proj+v_proj, targets=attention (the default) or targets=all-linear; "
    "qlora holds the frozen products in 4 bits (bits=4, double=yes), dora trains magnitudes too"
)
BITS = (0, 4, 8)
USUAL_RANK = 16
"""Rank if only the kind is named, as in PEFT's guide to quantization (docs, developer_guides/quantization)."""
WIDE_BITS = 16
"""Bits of a weight as a product reads it, and of frozen weights that stay as they are."""
_OPTIONS = ("r", "targets", "bits", "double", "others", "dora", "embeddings", "save", "dropout", "alpha", "rslora")
_ALIASES = {
    "rank": "r",
    "lorar": "r",
    "target": "targets",
    "targetmodules": "targets",
    "loadinbits": "bits",
    "doublequant": "double",
    "usedora": "dora",
    "modulestosave": "save",
    "loradropout": "dropout",
    "loraalpha": "alpha",
    "userslora": "rslora",
}
_QLORA = {"bits": "4", "double": "yes"}
_KINDS: Mapping[str, Mapping[str, str]] = {
    "lora": {},
    "rslora": {"rslora": "yes"},
    "dora": {"dora": "yes"},
    "qlora": _QLORA,
    "qdora": {**_QLORA, "dora": "yes"},
}
"""Options that a kind of adapters stands for. Quantised kinds adapt every linear layer, as the paper does (section 4)."""
_FORMATS: Mapping[str, str] = {"nf4": "4", "4bit": "4", "8bit": "8", "int8": "8", "llm.int8": "8"}
"""Bits of the formats of frozen weights."""


@dataclass(frozen=True, slots=True)
class LoRA:
    """Layers with adapters, their rank, and the form of the frozen weights.

    Attributes:
        rank: inner width of an adapter.
        targets: ``attention`` (its products), ``all-linear`` (all but the output layer, routers and experts, as PEFT), the
            last parts of layers' names (``q_proj``, ``embed_tokens``, ``lm_head``, ``experts``), or a pattern of whole names.
        bits: bits of an element of the frozen products, 4 or 8; 0: those of the precision.
        embeddings: whether embeddings and the output layer are trained whole (PEFT, ``modules_to_save``): a copy of them in
            their own width. The frozen ones stay.
        dropout: share of an adapter's input that is dropped. Each adapter then keeps its own copy.
        double: whether the scales of 4 bits are quantised too.
        others: bits of frozen weights that are no products of 4 or 8 bits: embeddings, output layer, norms. 32 as after PEFT's
            ``prepare_model_for_kbit_training``, which widens them.
        dora: whether a magnitude for each output is trained too.
        saved: last parts of names of layers that are trained whole, as ``embeddings``.
        rslora, alpha: scale of an adapter's result, which takes no time or memory.

    Raises:
        UserError: a rank below 1, no targets, other bits, or options that do not go together.
    """

    rank: int
    targets: tuple[str, ...] = (ATTENTION,)
    bits: int = 0
    embeddings: bool = False
    dropout: float = 0.0
    double: bool = False
    others: int = WIDE_BITS
    dora: bool = False
    saved: tuple[str, ...] = ()
    rslora: bool = False
    alpha: float = 0.0

    def __post_init__(self) -> None:
        check_count(self.rank, "as the rank of adapters")
        if not self.targets or not all(isinstance(name, str) and name for name in self.targets):
            raise UserError(f"adapters beside {self.targets!r}", EXAMPLE)
        if self.bits not in BITS:
            raise UserError(f"frozen weights of {shown(self.bits)} bits", "give bits=4 or bits=8, or leave it out")
        if not 0 <= self.dropout < 1:
            raise UserError(f"adapters with dropout {self.dropout!r}", "give dropout=0.05, from 0 to less than 1")
        if self.double and self.bits != 4:
            raise UserError("double quantisation of weights that have no 4 bits", "give bits=4, or leave double out")
        if self.others not in (WIDE_BITS, 32):
            raise UserError(f"other frozen weights of {shown(self.others)} bits", "give others=16 or others=32")
        if self.others == 32 and not self.bits:
            raise UserError("other frozen weights of 32 bits next to products that are not quantised", "give bits=4 or bits=8")

    @property
    def text(self) -> str:
        """The adapters as a user types them: ``r=16,targets=q_proj+v_proj``."""
        more = {
            "bits": str(self.bits) if self.bits else "",
            "double": "yes" if self.double else "",
            "others": "32" if self.others == 32 else "",
            "dora": "yes" if self.dora else "",
            "embeddings": "whole" if self.embeddings else "",
            "save": "+".join(self.saved),
            "dropout": f"{self.dropout:g}" if self.dropout else "",
            "alpha": f"{self.alpha:g}" if self.alpha else "",
            "rslora": "yes" if self.rslora else "",
        }
        given = "".join(f",{name}={value}" for name, value in more.items() if value)
        return f"r={self.rank},targets={'+'.join(self.targets)}{given}"

    @property
    def kind(self) -> str:
        """The kind of adapters: ``LoRA``, ``QLoRA``, ``DoRA`` or ``QDoRA``."""
        return f"{'Q' if self.bits else ''}{'DoRA' if self.dora else 'LoRA'}"


def parse_lora(text: str) -> LoRA:
    """Parse ``r=16``, ``16``, ``qlora`` or ``r=16,targets=q_proj+v_proj``. Raises UserError for anything else."""
    given, meant = _options(text)
    options = {**meant, **given}
    rank = options.get("r", "")
    if not rank.isdecimal():
        raise UserError(f"LoRA {text!r} has no rank", EXAMPLE)
    bits, others = options.get("bits", "0"), options.get("others", str(WIDE_BITS))
    for name, value in (("bits", bits), ("others", others)):
        if not value.isdecimal():
            raise UserError(f"LoRA {text!r}: {name} {value!r}", EXAMPLE)
    dropout, alpha = options.get("dropout", "0"), options.get("alpha", "0")
    if not re.fullmatch(r"[01]?\.?\d{1,9}", dropout):
        raise UserError(f"LoRA {text!r}: dropout {dropout!r}", "give dropout=0.05, from 0 to less than 1")
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", alpha):
        raise UserError(f"LoRA {text!r}: alpha {alpha!r}", "give alpha=32; it changes neither time nor memory")
    if options.get("embeddings", "whole") not in ("whole", "frozen"):
        raise UserError(f"LoRA {text!r}: embeddings {options['embeddings']!r}", "give embeddings=whole, or leave it out")
    quantised = bits in ("4", "8") and "targets" not in options and "kind" in options
    targets = options.get("targets", ALL if quantised else ATTENTION)
    return LoRA(
        int(rank),
        tuple({"alllinear": ALL}.get(fold(name), name) for name in _parts(targets)),
        int(bits),
        options.get("embeddings") == "whole",
        float(dropout),
        double=_yes(text, options, "double"),
        others=int(others),
        dora=_yes(text, options, "dora"),
        saved=_parts(options["save"]) if "save" in options else (),
        rslora=_yes(text, options, "rslora"),
        alpha=float(alpha),
    )


def _options(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options that are given by name, and those that words stand for."""
    given: dict[str, str] = {}
    meant: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and name.isdecimal():  # a rank alone
            name, equals, value = "r", "=", name
        if not equals and (kind := _KINDS.get(fold(name))) is not None:
            meant.update({"r": str(USUAL_RANK), "kind": name, **kind})
            continue
        if not equals and (bits := _FORMATS.get(fold(name))):
            name, equals, value = "bits", "=", bits
        key = _ALIASES.get(fold(name), name)
        if not equals or not value or key in given:
            raise UserError(f"LoRA {text!r}", EXAMPLE)
        if key not in _OPTIONS:
            raise unknown("option of LoRA", name, _OPTIONS)
        given[key] = value
    return given, meant


def _yes(text: str, options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "no")
    if fold(value) not in ("yes", "no", "true", "false"):
        raise UserError(f"LoRA {text!r}: {name} {value!r}", f"give {name}=yes, or leave it out")
    return fold(value) in ("yes", "true")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split("+"))
