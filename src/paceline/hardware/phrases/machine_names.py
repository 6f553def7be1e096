"""Names of devices and instances among tokens: the longest one at a place, with what drivers and shops add to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from paceline.errors import UserError
from paceline.hardware.catalogue import device_names, is_device
from paceline.hardware.device_rows import VARIABLE
from paceline.hardware.instances import instance, instances
from paceline.hardware.phrases.tokens import Token, vocabulary
from paceline.hardware.phrases.unmodelled import unmodelled_names
from paceline.hardware.spelling import fold_hardware
from paceline.names import fold

_LONGEST = 9
"""Most tokens of a name: ``NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition``."""
_SLICE = 6
"""Most tokens of a slice of TPUs: ``Google Cloud TPU v5p-512``."""
_FEWEST_PLURAL = 3
_BRIDGED = "NVLink"
_BRIDGES = ("nvlink", "nv-link", "nvlinks", "bridge", "bridged")
_BETWEEN = ("with", "an", "a", "and", "generation", "edition")


@dataclass(frozen=True, slots=True)
class MachineName:
    """Name of a device or an instance in a phrase.

    Attributes:
        text: the name, as ``catalogue.device`` or ``instances.instance`` takes it.
        end: index of the first token after it.
        rented: whether it is an instance, which has its own number of devices.
    """

    text: str
    end: int
    rented: bool


def known_name(text: str) -> bool:
    """Return whether a text is a name in the catalogue as it is, also in the plural."""
    return _known_key(text) is not None


def name_at(said: Sequence[Token], start: int) -> MachineName | None:
    """Return the longest name that begins at a token, with additions that are true of it; None if none begins there.

    Raises:
        UserError: a slice of TPUs that does not exist.
    """
    names = _names(os.environ.get(VARIABLE, ""))
    for end in range(min(len(said), start + _LONGEST), start, -1):
        if said[end - 1].kind in ("comma", "sign", "open", "close", "colon"):
            continue
        text = _written(said[start:end])
        if said[start].folded == "a" and text[1:2] == " ":  # an article, and no A2
            continue
        if (key := _known_key(text)) is not None:
            if vocabulary().of(said[start], "sellers") and end == start + 1 and _another(said, end):
                return None
            return _with_additions(said, start, end, text if fold_hardware(text) == key else names[key])
        if end - start <= _SLICE and _may_be_slice(text) and instance(text):
            return MachineName(text, end, rented=True)
    return None


def _with_additions(said: Sequence[Token], start: int, base: int, name: str) -> MachineName:
    """Return the name at ``start`` with the words of memory, form and bridge around it that lead to a device."""
    sizes = [
        f"{token.text.upper().rstrip('IB').rstrip('G')}GB" for token in said[max(0, start - 1) : start] if _is_memory(token)
    ]
    words, end, bridged, found = list(sizes), base, False, (name, base)
    while end < len(said):
        token = said[end]
        end += 1
        if _is_memory(token):
            words.append(_memory(token))
        elif token.folded in _BRIDGES:
            bridged = True
        elif vocabulary().of(token, "forms") or token.folded.startswith("nvl"):
            words.append(token.text)
        elif token.kind in ("sign", "open", "close") or token.folded in _BETWEEN or vocabulary().of(token, "makers"):
            continue
        else:
            break
        longer = " ".join((name, *words))
        tried = (f"{longer} {_BRIDGED}", f"{name} {_BRIDGED}", longer) if bridged else (longer,)
        found = next(((text, end) for text in tried if _known(text)), found)
    text, end = found
    if text == name and sizes and _known(longer := f"{name} {sizes[0]}"):
        text = longer
    rented = instance(text) is not None
    return MachineName(text, end, rented)


def _another(said: Sequence[Token], start: int) -> bool:
    """Return whether a name begins at a later token: ``Kaggle`` alone is a machine, before a name it is the provider."""
    later = (place for place in range(start, len(said)) if not vocabulary().of(said[place], "sellers"))
    return any(name_at(said, place) for place in later)


def _known(text: str) -> bool:
    try:
        return is_device(text) or instance(text) is not None
    except UserError:
        return False


def _is_memory(token: Token) -> bool:
    return token.kind == "size" and not token.folded.endswith("t")


def _memory(token: Token) -> str:
    """Return a size of memory as catalogues write it: ``80GB`` for ``80 GiB`` or ``80G``."""
    return f"{token.text[: token.folded.index('g')].strip()}GB"


def _written(said: Sequence[Token]) -> str:
    """Return tokens as they were written, with one space for any gap."""
    gaps = ["", *(" " if one.end < other.start else "" for one, other in pairwise(said))]
    return "".join(f"{gap}{token.text}" for gap, token in zip(gaps, said, strict=True))


def _known_key(text: str) -> str | None:
    """Return the folded form of a name, which may be in the plural: ``H100s``, but ``L40S`` is a name. None if unknown."""
    names, key = _names(os.environ.get(VARIABLE, "")), fold_hardware(text).removeprefix("ml.")
    if key in names:
        return key
    plural = key.endswith("s") and len(key) >= _FEWEST_PLURAL
    return key[:-1] if plural and key[:-1] in names else None


def _may_be_slice(text: str) -> bool:
    key = fold(text).removeprefix("google").removeprefix("cloud").removeprefix("tpu")
    return key[:1] == "v" and key[1:2].isdigit() and key[-1:].isdigit()


@cache
def _names(own: str) -> Mapping[str, str]:
    """Return all names of devices and instances by their folded form. ``own``: the user's file of devices, part of the key."""
    rented = [text for entry in instances() for text in (entry.name, *entry.aliases)]
    return {fold_hardware(text): text for text in (*unmodelled_names(), *rented, *device_names())}
