"""One declaration for each choice about a run, at its dataclass field. Every list of choices is derived from it.

``tensor: int = choice(1, WholeNumber("tensor"), "devices that divide each layer")`` declares a field of a dataclass and, in its
metadata, a ``StrategyChoice``. ``Strategy.of``, JSON, the command line's options, columns of tables of jobs, the values that
``plan`` tries, ``why not`` and the changes of ``whatif`` come from the choices of ``Strategy`` and its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, Literal

from paceline.errors import UserError
from paceline.strategy.choices.choice_values import Compound, LegalValues
from paceline.strategy.choices.synonyms import Synonym
from paceline.strategy.choices.values import plain

Effect = Literal["groups", "exchange", "bytes", "time", "memory", "numerics"]
"""Effect of a choice: on which tensors are exchanged together, on an exchange and what it overlaps, on the bytes that a device
sends in a step, on the seconds of a step, on a device's memory, or on computed numbers."""
EVERYTHING: tuple[Effect, ...] = ("groups", "exchange", "bytes", "time", "memory", "numerics")
TRAFFIC: tuple[Effect, ...] = EVERYTHING[1:]
"""Effects of a choice that leaves the groups as they are."""
FIGURES: tuple[Effect, ...] = EVERYTHING[1:-1]
"""Effects of a choice that changes what a step costs, but no computed number."""


Topic = Literal["", "run", "parallelism", "memory", "exchange", "local"]
"""Section of the help that lists the option of a choice."""
_TOPICS: Mapping[str, Topic] = {
    "": "run",
    "parallelism": "parallelism",
    "gradient_exchange": "exchange",
    "local": "local",
    "weight_update": "memory",
}
"""Default section, by the part of ``Strategy``."""


@dataclass(frozen=True, slots=True)
class Need:
    """Condition on the other choices. It always holds for a choice with its default value.

    Attributes:
        met: returns True if the owner of the field meets it.
        message, fix: texts of the ``UserError`` where it does not. ``{name}`` is the field's name, ``{value}`` its value and
            ``{of}`` the owner, as in ``{of.tensor}``; ``{words}`` is the name with spaces.
    """

    met: Callable[[Any], bool]
    message: str
    fix: str


Check = Callable[[Any], None]
"""Condition as a function, which takes the owner of the field and raises ``UserError``."""


def _always(owner: Any) -> bool:
    return True


def _never(owner: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Trained:
    """Rule by which ``train`` runs or refuses the value of a choice.

    Attributes:
        what, fix: texts of the refusal, formatted as those of ``Need``.
        runs: returns True if it runs the owner's value. The default always runs.
        option: True if ``train`` has the option.
        auto: True if ``attach(model, "auto")`` gives the value to the exchanges that it tries.
        help: sentence of the option of ``train``; empty: the sentence of the choice.
        read_as: property of the owner by which training reads the value; empty: the field itself.
    """

    what: str = "{words} {value}"
    fix: str = "leave {name} out"
    runs: Callable[[Any], bool] = _never
    option: bool = False
    help: str = ""
    auto: bool = False
    read_as: str = ""


RUNS = Trained(runs=_always, option=True)
"""Rule of choices with an option of ``train``: training runs every legal value."""
RUNS_IN_AUTO = Trained(runs=_always, option=True, auto=True)
"""Rule of choices that ``auto`` takes too."""
RUNS_AS_GIVEN = Trained(runs=_always)
"""Rule of choices without an option of ``train``: training runs every legal value."""


@dataclass(frozen=True, slots=True)
class EmitRule:
    """Rule by which ``plan --emit`` writes or refuses the value of a choice.

    Attributes:
        what, why: texts of the refusal; ``what`` is formatted as the texts of ``Need``.
        by_scripts: returns True if a script that wraps the model and may call ``attach`` has the owner's value. The default is
            always written.
        by_programs: returns True if programs that define the training themselves have it, such as Megatron-LM.
    """

    what: str = "{words} {value}"
    why: str = "it is not written here"
    by_scripts: Callable[[Any], bool] = _never
    by_programs: Callable[[Any], bool] = _never


WRITTEN = EmitRule(by_scripts=_always, by_programs=_always)
"""Rule of choices that the writer of each target handles or refuses itself, or that no setting states."""
IN_SCRIPTS = EmitRule(by_scripts=_always)
"""Rule of choices that ``attach`` takes."""


@dataclass(frozen=True, slots=True)
class Searched:
    """Values of a choice that ``plan`` tries, and the option that narrows them.

    Attributes:
        axis: field of ``Space`` that holds the values that are tried; empty: ``Space.others`` holds them, by the choice's name.
        values: values that a plan tries by default; empty if they depend on the network, the cluster or other choices.
        single: True if all strategies have one value, which is the default unless another is named.
        option: True if ``plan`` has the option.
        help: sentence of the option of ``plan``; ``{legal}`` and ``{help}`` are the legal names and the choice's own sentence.
        along: returns what a plan chooses with a value, by name, for the owner and the value.
    """

    axis: str = ""
    values: tuple[Any, ...] = ()
    single: bool = False
    option: bool = True
    help: str = "{help}; may be repeated"
    along: Callable[[Any, Any], Mapping[str, Any]] = lambda owner, value: {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StrategyChoice:
    """One choice about a run.

    Attributes:
        field, part: the dataclass field, and the field of ``Strategy`` that holds its owner; empty: ``Strategy`` itself.
        name: in ``Strategy.of`` and in JSON.
        values: legal values.
        default: default value; ``MISSING`` without one. ``rule``: how the default follows from other choices, in words.
        help: one sentence; ``{legal}`` and ``{default}`` are filled in.
        option: name of the option, without dashes; empty without an option. ``other_options``: further names.
        metavar: what the option's value is called. ``bare``: value of the option without one; empty if it needs one.
        word: in ``whatif --change`` and ``plan --why-not``; empty if no text can write it. ``other_words``: further names.
        example: a value, as a user types it.
        column: column of a table of jobs; empty if a table cannot hold it.
        needs: conditions on other choices of the same owner. ``strategy_needs``: conditions on choices of other parts, whose
            owner is the strategy.
        affects: what it changes. Caches of groups and of exchanges leave out choices that do not affect them.
        grouped_by: what of the value the groups depend on; None: all of it.
        follows: the choice that sets it back to its default when it changes: ``compression`` or ``exchange``.
        recorded: True if a row of a table of jobs has its column even with the default value.
        later: True if JSON leaves the default out, as files of earlier versions do.
        resumable: True if a run may change it and still resume from a checkpoint.
        said: True if a description names it even with its default value.
        train: how ``train`` takes it; by default it refuses every value but the default.
        emit: how files of ``plan --emit`` state it; by default they refuse every value but the default.
        plan: how ``plan`` searches it; None: every strategy has the default.
        searched_with: choice with which a plan always takes it, so that it is no option there; empty if none.
        told_apart: True if a ranking lists strategies that differ in it, not only the best of them.
        detour: True if another value than the default makes a strategy less simple, or a function that returns whether the
            owner's value does. Of two equally fast strategies a plan takes the simpler one (``Strategy.simplicity``).
        of_layout: True if a search of layouts decides it.
        title: text of a description for other values than the default, formatted as the texts of ``Need``, or a function that
            returns it for the owner of the field. Empty: no text, or the text of another choice covers it.
        listed_by_name: True if a list of all choices states name and value, as earlier versions do, not the title.
        title_rank: place of the text in a description; texts of equal rank are in the order of the declarations.
        label: label of the control on the page of ``serve``; empty: the name. ``unset``: what an empty control means; empty:
            the default. ``start``: its value at the first visit.
        topic: section of the help with the option; empty: that of the part. ``common``: True for one of the few that most
            users need, which the short help shows.
        source: paper or software that defines it.
        synonyms: its names in other tools, with their values.
    """

    values: LegalValues
    default: Any
    help: str
    field: str = ""
    part: str = ""
    name: str = ""
    rule: str = ""
    option: str = "*"
    other_options: tuple[str, ...] = ()
    metavar: str = ""
    bare: str = ""
    word: str = "*"
    other_words: tuple[str, ...] = ()
    example: str = ""
    column: str = "*"
    needs: tuple[Need | Check, ...] = ()
    strategy_needs: tuple[Need | Check, ...] = ()
    affects: tuple[Effect, ...] = EVERYTHING
    grouped_by: Callable[[Any], Hashable] | None = None
    follows: Literal["", "compression", "exchange"] = ""
    recorded: bool = False
    later: bool = False
    resumable: bool = False
    said: bool = False
    train: Trained = Trained()
    emit: EmitRule = EmitRule()
    plan: Searched | None = None
    searched_with: str = ""
    told_apart: bool = False
    detour: bool | Callable[[Any], bool] = False
    of_layout: bool = False
    title: str | Callable[[Any], str] = ""
    listed_by_name: bool = False
    title_rank: int = 0
    label: str = ""
    unset: str = ""
    start: str = ""
    topic: Topic = ""
    common: bool = False
    source: str = ""
    synonyms: tuple[Synonym, ...] = ()

    @property
    def dest(self) -> str:
        """Name of the option's value among parsed arguments."""
        return self.option.removeprefix("no-").replace("-", "_")

    @property
    def has_default(self) -> bool:
        """True if the choice has a default."""
        return self.default is not MISSING

    def sentence(self, text: str = "") -> str:
        """Return ``help``, or ``text`` instead, with the legal names and the default filled in."""
        filled = {"legal": ", ".join(map(str, self.values.names)), "default": self.rule or self.default_text}
        return (text or self.help).format(**filled, help=self.help.format(**filled))

    @property
    def default_text(self) -> str:
        """Default value as a user types it."""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def described(self, owner: Any) -> str:
        """Return the title for the value that the owner of the field has; empty for the default."""
        value = getattr(owner, self.field)
        if not self.title or value is self.default or value == self.default:
            return ""
        return filled(self.title, owner, self.name, value) if isinstance(self.title, str) else self.title(owner)

    def listed(self, value: object) -> str:
        """Return the title for a value in JSON form, for a list of all choices; empty if that states name and value.

        It also does for a title that needs the owner, and for a value that is not legal, as in an earlier version's record.
        """
        if not isinstance(self.title, str) or "{of" in self.title or self.listed_by_name:
            return ""
        try:
            return filled(self.title, None, self.name, self.values.check(value, self.name))
        except UserError:
            return ""


ONE_OF = "only this one of {legal}; may be repeated"
"""Help text for options of ``plan`` that narrow names."""
DERIVED = "*"
"""Mark of a text that follows from the field's name."""


def choice(default: Any, values: LegalValues, help: str, **more: Any) -> Any:
    """Declare a field and its choice.

    Args:
        more: further attributes of ``StrategyChoice``. Names that are not given follow from the field's name.
    """
    return field(default=default, metadata={"choice": StrategyChoice(default=default, values=values, help=help, **more)})


@cache
def declared(owner: Any, part: str = "") -> tuple[StrategyChoice, ...]:
    """Return the choices that a dataclass declares, in the order of its fields. ``part``: field of ``Strategy`` that holds
    it."""
    return tuple(_named(each.metadata["choice"], each.name, part) for each in fields(owner) if "choice" in each.metadata)


def _named(item: StrategyChoice, field_name: str, part: str) -> StrategyChoice:
    """Return the choice with missing names derived from the name of its field."""
    name = item.name or field_name
    hyphened = "" if isinstance(item.values, Compound) else name.replace("_", "-")  # options are those of the parts
    option = hyphened if item.option == DERIVED else item.option
    word = (option or hyphened) if item.word == DERIVED else item.word
    column = name if item.column == DERIVED else item.column
    topic = item.topic or _TOPICS.get(part, "run")
    return replace(item, field=field_name, part=part, name=name, option=option, word=word, column=column, topic=topic)


def check_values(owner: Any) -> None:
    """Replace each field of a frozen dataclass by its legal value. Raises UserError for an illegal one."""
    current, checks = _checks(owner.__class__)
    for value, (name, default, values) in zip(current(owner), checks):  # noqa: B905 a plan builds 100,000 strategies
        if value is not default:  # no call in the usual case
            legal = values.check(value, name)
            if legal is not value:
                object.__setattr__(owner, name, legal)


def check_needs(owner: Any) -> None:
    """Raise UserError if a value conflicts with the owner's other choices."""
    current, conditions = _needs(owner.__class__)
    for value, (name, default, needs) in zip(current(owner), conditions, strict=True):
        if value is not default and value != default:
            refuse_unmet(needs, owner, name, value)


def refuse_unmet(needs: Sequence[Need | Check], owner: Any, name: str, value: object) -> None:
    """Raise UserError for the first condition that ``owner`` does not meet."""
    for need in needs:
        if not isinstance(need, Need):
            need(owner)
        elif not need.met(owner):
            raise UserError(*(filled(text, owner, name, value) for text in (need.message, need.fix)))


def filled(text: str, owner: Any, name: str, value: object) -> str:
    """Fill the value of a field into a text of ``Need`` or ``Trained``."""
    return text.format(name=name, value=value, of=owner, words=name.replace("_", " "))


def plain_values(owner: Any) -> dict[str, Any]:
    """Return the JSON forms of the choices of a dataclass, by name, in the order of its fields."""
    current, names, later, objects = _json_fields(owner.__class__)
    written = dict(zip(names, current(owner), strict=True))
    for name, default in later:
        if written[name] == default:
            del written[name]
    for name in objects:
        if name in written:
            written[name] = plain(written[name])
    return written


@cache
def _json_fields(
    owner: Any,
) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[str, ...], tuple[tuple[str, Any], ...], tuple[str, ...]]:
    """Return a reader of the fields, the names of the fields, those omitted at their default, and those that hold objects."""
    items = declared(owner)
    later = tuple((item.name, item.default) for item in items if item.later)
    objects = tuple(item.name for item in items if item.values.objects)
    return values_of([item.field for item in items]), tuple(item.name for item in items), later, objects


@cache
def _checks(owner: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Any, LegalValues], ...]]:
    items = declared(owner)
    return values_of([item.field for item in items]), tuple((item.field, item.default, item.values) for item in items)


@cache
def _needs(owner: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[tuple[str, Any, tuple[Need | Check, ...]], ...]]:
    items = [item for item in declared(owner) if item.needs]
    return values_of([item.field for item in items]), tuple((item.field, item.default, item.needs) for item in items)


def values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these fields of an object at once."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda owner: tuple(getattr(owner, name) for name in names)


def collected(whole: Any, parts: Mapping[str, Any]) -> dict[str, StrategyChoice]:
    """Return the choices of a strategy by name: its own, then those of its parts."""
    every: list[StrategyChoice] = [*declared(whole), *(item for part, kind in parts.items() for item in declared(kind, part))]
    return {item.name: item for item in sorted(every, key=lambda item: item.field != "data")}
