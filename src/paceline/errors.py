"""Errors: a user's mistake, with checks of arguments; the end of a run by a signal; failed steps of an attached model."""

from __future__ import annotations

import reprlib
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral

from paceline.names import NO_ALIASES, likeliest, look_up, near_names

LARGEST_COUNT = 1 << 53
"""The largest whole number that a count may have: a float still holds it exactly."""


class UserError(Exception):
    """A user's mistake, which the command line prints on one line with exit code 2 and no traceback.

    Args:
        message: the given value and the legal ones. Both texts name an argument of Python as `` `scale_from` ``; the command
            line prints its option, ``--scale-from``.
        fix: the next step, when there is one to name.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}" if fix else message)


class NotMet(UserError):
    """The answer is no: nothing fits, or nothing keeps a stated limit. The command line prints it with exit code 3."""


class Interrupted(KeyboardInterrupt):
    """A run ended in order after a signal, such as SIGINT for Ctrl-C. ``code`` is the exit code, 128 and the signal's number.

    Args:
        number: number of the signal.
        kept: files that the run leaves.
    """

    def __init__(self, number: int, kept: str = "") -> None:
        self.number, self.code = number, 128 + number
        what = f"interrupted by {signal.Signals(number).name}"
        super().__init__(f"{what}; {kept}" if kept else what)


class LostRank(RuntimeError):
    """Error for a worker that vanished, or whose link failed, during an exchange of gradients."""


class ReplicasDiverged(RuntimeError):
    """Error for workers that no longer have equal weights."""


class TrainingDiverged(RuntimeError):
    """Error for a network whose weights or losses are no longer finite."""


MOST_LISTED = 24
"""Most names that an error lists if no name is near."""


def unknown(kind: str, given: object, legal: Iterable[str], fix: str = "", few: int = 6) -> UserError:
    """Return the error for a name outside ``legal``.

    It lists all legal names if they are at most ``few``, else the nearest. Without near names it lists up to ``MOST_LISTED``.
    """
    names = list(legal)
    if not isinstance(given, str):
        return UserError(f"the {kind} is a name, {shown(given)} was given", fix or f"legal: {', '.join(names)}")
    near = near_names(given, names)
    every = f"legal: {', '.join(names) or 'none'}"
    far = every if few and len(names) <= MOST_LISTED else "nothing is near"
    choices = every if len(names) <= few else f"nearest: {', '.join(near)}" if near else far
    likely = likeliest(given, names)
    hint = f"did you mean {likely}?" if likely and (len(names) <= few or not fix) else fix
    return UserError(f"unknown {kind} {shorten(given)!r}; {choices}", hint)


def shorten(text: str, most: int = 200) -> str:
    """Shorten a text to ``most`` characters, because a damaged file may contain long ones."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object) -> str:
    """Format ``value`` of any type on one short line of an error."""
    try:
        return reprlib.repr(value)
    except Exception:  # Python refuses to print an int of more than 4,300 digits; a class may have a broken __repr__
        return f"this {type(value).__name__}"


def check_name(kind: str, value: object, legal: Iterable[str]) -> None:
    """Raise UserError if ``value`` is not one of the ``legal`` names."""
    if not isinstance(value, str) or value not in legal:
        raise unknown(kind, value, legal)


def known_name(kind: str, value: object, legal: Collection[str], aliases: Mapping[str, str] = NO_ALIASES, few: int = 6) -> str:
    """Return the ``legal`` name that ``value`` means, in any case, with any separators, or by an alias.

    Args:
        few: as of ``unknown``.

    Raises:
        UserError: no such name, with the nearest one.
    """
    if isinstance(value, str):
        if value in legal:  # the usual case, without a table of folded names
            return value
        if meant := look_up(value, legal, aliases):
            return meant
    raise unknown(kind, value, legal, few=few)


def check_count(value: object, what: str, least: int = 1) -> int:
    """Return ``value`` as a plain int from ``least`` to ``LARGEST_COUNT``. NumPy's whole numbers are legal too.

    Args:
        what: name of the counted objects, such as ``"workers"``; it follows the value in the error.

    Raises:
        UserError: anything else.
    """
    if type(value) is int and least <= value <= LARGEST_COUNT:  # the usual case, without a look at an abstract class
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{shown(value)} {what}", f"give a whole number from {least} up")
    if int(value) > LARGEST_COUNT:
        raise UserError(f"{shown(value)} {what}", f"give a whole number from {least} to {LARGEST_COUNT:,}")
    return int(value)


def check_flag(value: object, name: str) -> None:
    """Raise UserError if ``value`` is not True or False."""
    if type(value) is not bool:
        raise UserError(f"{name}={shown(value)}", "give True or False")


EXTRAS = {"torch": "train", "sklearn": "train", "scipy": "schedule", "matplotlib": "report"}
"""Extra of the package that installs a module which the plain install lacks."""


def missing_extra(error: ModuleNotFoundError) -> str:
    """Return what a missing module of an extra asks for, as a message of the command line; empty for another module."""
    module = (error.name or "").partition(".")[0]
    return f"this needs {module}; pip install 'paceline[{EXTRAS[module]}]'" if module in EXTRAS else ""


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Raise UserError, with the package to install, if PyTorch is missing in this context."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise UserError(f"{what} needs PyTorch", "install it: pip install 'paceline[train]'") from None
