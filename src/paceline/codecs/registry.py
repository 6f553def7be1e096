"""All codecs, by name and by their number in the header. A codec is a class with a number in a module of ``reference``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from paceline.codecs import reference
from paceline.codecs.codec import Codec


def _declared(kind: type[Any]) -> Iterator[type[Codec]]:
    """Yield the subclasses that declare a number."""
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _declared(each)


for _module in iter_modules(reference.__path__):
    import_module(f"{reference.__name__}.{_module.name}")

BY_CODE: Mapping[int, type[Codec]] = {codec.code: codec for codec in sorted(_declared(Codec), key=lambda codec: codec.code)}
BY_NAME: Mapping[str, type[Codec]] = {codec.name: codec for codec in BY_CODE.values() if not codec.of_sums}
