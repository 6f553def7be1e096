"""Selection of a visitor: values by option, as the address states them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.errors import UserError, shorten, unknown
from paceline.serve.controls import by_option, controls

LONGEST = 100
"""Most characters of a value."""
UPLOADED = "config:"
"""Prefix of the name of a model with an uploaded configuration."""

Selection = Mapping[str, str]
"""Chosen values by option, in the order of the controls. A missing option has its default."""


class ControlError(UserError):
    """A user's mistake in one control. ``option``: the control."""

    def __init__(self, option: str, error: UserError) -> None:
        super().__init__(error.message, error.fix)
        self.option = option


@contextmanager
def about(option: str) -> Iterator[None]:
    """Attribute a user's mistake inside the block to a control."""
    try:
        yield
    except ControlError:
        raise
    except UserError as error:
        raise ControlError(option, error) from error


def start() -> Selection:
    """Return the selection of the first visit: a usual cluster with its usual network."""
    return {control.option: control.start for control in controls() if control.start}


def selection(pairs: Iterable[tuple[str, str]]) -> Selection:
    """Return the selection in an address. Raises UserError for unknown options, values that are repeated or too long, and a
    missing model or device."""
    given: dict[str, str] = {}
    legal = [control.option for control in controls()]
    for option, value in pairs:
        if option not in legal:
            raise unknown("option", shorten(option, LONGEST), legal)
        if option in given:
            raise UserError(f"{option} is given twice", "give it once")
        if len(value) > LONGEST:
            raise ControlError(option, UserError(f"{option} of {len(value):,} characters", f"give at most {LONGEST}"))
        given[option] = value.strip()
    chosen = {option: given[option] for option in legal if given.get(option)}
    for option in ("workload", "device"):
        if option not in chosen:
            raise ControlError(option, UserError(f"no {option} is given", f"name one: {start()[option]}"))
    return chosen


def value(chosen: Selection, option: str) -> Any:
    """Return the value of a control; None if it is not given. Raises ControlError as ``Control.value``."""
    if option not in chosen:
        return None
    with about(option):
        return by_option()[option].value(chosen[option])
