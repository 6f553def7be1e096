"""Spellings of device and server names by drivers, result lists and shops."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.names import fold

_MAKER = re.compile(r"^(nvidia|tesla|geforce|amd|instinct|radeon|intel|habana|google|cloud|graphcore|huawei|apple)+(?=.)")
_SELLER = re.compile(
    r"dell|supermicro|smci|hpe?|lenovo|gigabyte|asus|inspur|cisco|fujitsu|qct|quanta|wiwynn|eviden|bull|penguin|"
    r"aws|amazon|ec2|azure|microsoft|gcp|gce|oci|oracle|lambda(?:cloud|labs)?|[0-9]*cc|coreweave|runpod|nebius|vast|crusoe|"
    r"together|paperspace|vultr|scaleway|hyperstack|fluidstack",
    re.IGNORECASE,
)
"""Who builds servers and who lets them (``1CC``: Lambda's 1-Click Cluster): the name of a device or an instance follows, maybe
behind the server's own."""
_NOISE = re.compile(r"[\s_-]+(hbm[0-9][a-z]?|gen[0-9]|[0-9]+w|cts|oam)\b", re.IGNORECASE)
_SERVICE = re.compile(r"^ml\.(?=[a-z][a-z0-9-]*\.[a-z0-9]+$)", re.IGNORECASE)
"""Prefix of SageMaker before the name of an EC2 instance."""
_MARKS = re.compile(r"[®™]")
_KIND = re.compile(r"[\s_-]+(accelerator|gpu|chip|board)s?$", re.IGNORECASE)
_BRACKETS = re.compile(r"\s*\([^()]*\)")
_COUNT = re.compile(r"^\s*([1-9][0-9]*)\s*[x×]\s*(?=\S)", re.IGNORECASE)
_WORDS = re.compile(r"[\s_-]+")
_FORM = re.compile(r"\b(sxm|pcie)[0-9]", re.IGNORECASE)
_MEMORY = re.compile(r"[\s_-]*\b([0-9]+)\s*gb?\b", re.IGNORECASE)
_VARIANT = re.compile(r"[\s_-]*\b(sxm|pcie)[0-9]?\b", re.IGNORECASE)


def fold_hardware(name: str) -> str:
    """Fold a hardware name for look-ups: plain form, without the chip's maker."""
    return _MAKER.sub("", fold(name))


def words(name: str) -> tuple[str, ...]:
    """Return the words of a hardware name in alphabetical order, without the maker: ``NDR InfiniBand`` has those of
    ``InfiniBand NDR``. Empty where a number stands first, which may count what follows."""
    said = [word for word in _WORDS.split(name.strip().casefold()) if word and _MAKER.sub("", f"{word}.") != "."]
    return () if not said or said[0][0].isdigit() else tuple(sorted(said))


def halves(name: str) -> Iterator[tuple[str, str]]:
    """Yield a name's beginning and rest, split between any two words, where two names may stand side by side:
    ``Gaudi2 HL-225``."""
    said = name.replace("_", " ").split()
    yield from ((" ".join(said[:first]), " ".join(said[first:])) for first in range(1, len(said)))


def counted(name: str) -> tuple[int | None, str]:
    """Split ``name`` into the number of devices in front of it, if any, and the rest, without provider, remarks in brackets and
    marks: ``1CC 2x H100 80GB SXM5`` is 2 and ``H100 80GB SXM5``.
    """
    plain = _MARKS.sub("", _BRACKETS.sub("", name).replace("_", " ")).strip()
    for text in without_seller(plain):
        if matched := _COUNT.match(text):
            return int(matched[1]), text[matched.end() :]
    return None, plain or name


def without_seller(name: str) -> Iterator[str]:
    """Yield ``name`` and, if it begins with a vendor or provider, the same with one leading word after another removed.

    ``Dell PowerEdge XE9680 H100 SXM5`` ends in ``H100 SXM5``, ``ml.p5.48xlarge`` in ``p5.48xlarge``.
    """
    yield name
    said = name.replace("_", " ").split()
    names = [" ".join(said[count:]) for count in range(1, len(said))] if said and _SELLER.fullmatch(said[0]) else []
    yield from names
    yield from (own for text in (name.strip(), *names) if (own := _SERVICE.sub("", text)) != text)


def shorter(name: str) -> Iterator[str]:
    """Yield ``name``, then shorter forms without the suffixes of a device's name: kind of memory, form factor, memory size,
    word for its kind.
    """
    plain = _NOISE.sub("", name.replace("_", " "))
    general = _FORM.sub(r"\1", plain)
    short, shortest = _MEMORY.sub("", plain), _MEMORY.sub("", general)
    forms = (name, plain, general, short, shortest, _VARIANT.sub("", general), _VARIANT.sub("", shortest))
    yield from dict.fromkeys((*forms, *(_KIND.sub("", form) for form in forms)))


def memory_sizes(name: str) -> list[float]:
    """Return the memory sizes in a name in bytes. GB in names are GiB."""
    return [float(size) * 2**30 for size in _MEMORY.findall(_NOISE.sub("", name.replace("_", " ")))]
