"""Candidates for a smaller decoder: fewer layers, heads and rows of MLPs, by importance from a few samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from paceline.errors import UserError, unknown
from paceline.slimming.language.importance import IMPORTANCES, influences
from paceline.slimming.language.perplexity import batches, logits_of, perplexity
from paceline.slimming.language.stated_config import stated_config
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.experts import expert_use
from paceline.slimming.structures.fewer_layers import KIND, layers_of
from paceline.slimming.structures.shrink import load
from paceline.slimming.structures.structures import Structures

SAMPLES = 32
"""Windows of the text from which importances and perplexities before training are taken."""
EQUAL, FREE = "equal", "free"
WIDTHS = (EQUAL, FREE)
"""Widths: ``equal`` over all layers, as a configuration of Hugging Face can state them, or ``free`` for each layer."""
MOST_DROPPED = 0.5
"""Largest share of the layers that goes. Men et al. (arXiv:2403.03853) remove about a quarter without training."""


@dataclass(frozen=True)
class SmallDecoder:
    """A smaller decoder before training.

    Attributes:
        importance: one of ``IMPORTANCES``. ``layers``: numbers of the layers that stay. ``removed``: structures in them.
        cost: predicted seconds or bytes. ``perplexity``: on samples of the text.
    """

    importance: str
    layers: tuple[int, ...]
    removed: frozenset[int]
    plan: SlimPlan
    cost: float
    perplexity: float


class Candidates:
    """The search for a smaller decoder. Experts of a mixture matter by their use, whatever the importance of the others.

    Args:
        slim: the decoder and its budget. ``train``: tokens for importances; ``tune``: for perplexities. ``window``: tokens of a
            sample.
        importances: names in ``IMPORTANCES``. ``widths``: one of ``WIDTHS``.

    Attributes:
        whole: kinds of layers that stay whole since a configuration cannot state their widths, such as
            ``self_attn.q_proj.weight``.
    """

    def __init__(
        self,
        slim: Slim,
        train: Tensor,
        tune: Tensor,
        window: int,
        importances: Collection[str] = ("wanda", "taylor"),
        widths: str = EQUAL,
    ) -> None:
        if widths not in WIDTHS:
            raise unknown("widths", widths, WIDTHS)
        self.slim, self._tune, self._window = slim, tune, window
        self.structures = replace(slim.structures, branches=())  # whole layers go instead
        self._samples = list(batches(train, window, most=SAMPLES))
        model = slim.model
        self.path = layers_of(model)
        self.whole: tuple[str, ...] = ()
        if widths == EQUAL:
            stated, self.whole = stated_kinds(model, self.structures, self.path)
            if stated:
                self.structures = stated
            else:
                widths = FREE
        self._equal = widths == EQUAL
        layers = model.get_submodule(self.path)
        assert isinstance(layers, nn.ModuleList)
        self.influences = influences(layers, lambda: (logits_of(model, rows[:, :-1]) for rows in self._samples))
        self.scores = {name: IMPORTANCES[name](model, self.structures, self._samples) for name in importances}
        if self.structures.routers:
            use = expert_use(model, self.structures, (logits_of(model, rows[:, :-1]) for rows in self._samples))
            self.scores = {name: each | use for name, each in self.scores.items()}

    def every(self, goal: float, beside: float = 0.0) -> list[SmallDecoder]:
        """Return the candidates that are predicted to meet a cost, the best perplexity before training first.

        Args:
            beside: part of the budget that no removal changes, such as the bytes of a file's graph; the goal is without it.

        Raises:
            UserError: none does; the least that half of the layers can meet is named.
        """
        found = []
        for gone in range(int(MOST_DROPPED * len(self.influences)) + 1):
            for name in self.scores:
                if (made := self.one(name, gone, goal)) is not None:
                    found.append(made)
        if not found:
            show = self.slim.show
            most = int(MOST_DROPPED * len(self.influences))
            least, whole = (show(cost + beside) for cost in (self._least(most), self._cost(())))
            what = f"a budget of {show(goal + beside)} cannot be met: the whole model takes {whole}"
            raise UserError(what, f"give a larger budget; the least that half of the layers can meet is {least}")
        return sorted(found, key=lambda each: each.perplexity)

    def one(self, importance: str, gone: int, goal: float) -> SmallDecoder | None:
        """Return the candidate of an importance without some layers, those of the least influence; None if it is too costly."""
        dropped, left, removed, now = self._nearest(importance, gone, goal)
        if now > goal:
            return None
        layers = tuple(sorted(set(range(len(self.influences))) - dropped))
        plan = plan_of(left, removed, layers if dropped else ())
        small = load(plan, self.slim.model).eval()
        found = perplexity(small, self._tune, self._window, SAMPLES)
        return SmallDecoder(importance, layers, frozenset(removed), plan, now, found)

    def _nearest(self, importance: str, gone: int, goal: float) -> tuple[set[int], Structures, set[int], float]:
        """Return the layers to drop, the structures in the others, those to remove, and the cost nearest to a goal."""
        order = sorted(range(len(self.influences)), key=lambda number: self.influences[number])
        dropped = set(order[:gone])
        inside = frozenset(self._numbers(dropped))
        left = self.structures.only(each for each in self.structures.every if each.number not in inside)
        scores = {each.number: self.scores[importance][each.number] for each in left.every}
        cost: Callable[[Collection[int]], float] = lambda removed: self._cost(inside.union(removed))  # noqa: E731
        removed, now = nearest_widths(
            left, scores, cost, goal, self.slim.round_to, list(kinds(left, self.path).values()) if self._equal else ()
        )
        return dropped, left, removed, now

    def _least(self, gone: int) -> float:
        """Return the least cost without some layers."""
        return min(self._nearest(name, gone, 0.0)[-1] for name in self.scores)

    def _cost(self, removed: Collection[int]) -> float:
        return self.slim.cost(removed)

    def _numbers(self, dropped: Collection[int]) -> Iterator[int]:
        """Return the structures in some layers."""
        starts = tuple(f"{self.path}.{number}." for number in dropped)
        return (each.number for each in self.structures.every if starts and each.layer.startswith(starts))


def kinds(structures: Structures, path: str) -> dict[str, list[str]]:
    """Return the layers by kind, such as the MLPs of all decoder layers; those with other numbers of structures are apart.

    Args:
        path: of the list of decoder layers.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for layer, every in structures.layers().items():
        _, inside, own = layer.partition(f"{path}.")
        found.setdefault((own.partition(".")[2] if inside else layer, len(every)), []).append(layer)
    repeated = {name for name, _ in found if sum(other == name for other, _ in found) > 1}
    return {f"{name} of {count}" if name in repeated else name: layers for (name, count), layers in found.items()}


def stated_kinds(model: nn.Module, structures: Structures, path: str) -> tuple[Structures | None, tuple[str, ...]]:
    """Return the structures whose widths a configuration can state, None if there are none, and the other kinds of layers.

    Each kind is tried with half of its structures.
    """
    layers, good, bad = structures.layers(), set[str](), []
    for kind, names in kinds(structures, path).items():
        gone = {each.number for name in names for each in layers[name][1::2]}
        if stated_config(model, load(SlimPlan.of(structures, gone), model)) is not None:
            good.update(names)
        else:
            bad.append(kind)
    left = structures.only(each for each in structures.every if each.layer in good) if good else None
    return left, tuple(bad)


def plan_of(structures: Structures, removed: Collection[int], layers: Sequence[int] = ()) -> SlimPlan:
    """Return the plan without some structures, and with only these layers if any are named."""
    plan = SlimPlan.of(structures, removed)
    return replace(plan, replacements={"": {"kind": KIND, "kept": list(layers)}}) if layers else plan
