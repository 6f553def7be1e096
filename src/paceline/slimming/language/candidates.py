"""Candidates for a smaller decoder: fewer layers, heads and rows of MLPs, by importance from a few samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.language.equal_widths import kinds
from paceline.slimming.language.importance import IMPORTANCES, influences
from paceline.slimming.language.perplexity import batches, logits_of, perplexity
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.experts import expert_use
from paceline.slimming.structures.fewer_layers import KIND, layers_of
from paceline.slimming.structures.shrink import load
from paceline.slimming.structures.structures import Structures

SAMPLES = 32
"""Windows of the text from which importances and perplexities before training are taken."""
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
        importances: names in ``IMPORTANCES``.
    """

    def __init__(
        self,
        slim: Slim,
        train: Tensor,
        tune: Tensor,
        window: int,
        importances: Collection[str] = ("wanda", "taylor"),
    ) -> None:
        self.slim, self._tune, self._window = slim, tune, window
        self.structures = replace(slim.structures, branches=())  # whole layers go instead
        self._samples = list(batches(train, window, most=SAMPLES))
        model = slim.model
        self.path = layers_of(model)
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

    def gone(self, made: SmallDecoder) -> frozenset[int]:
        """Return all structures that a candidate lacks, those of its dropped layers too."""
        return made.removed.union(self._numbers(set(range(len(self.influences))) - set(made.layers)))

    def _nearest(self, importance: str, gone: int, goal: float) -> tuple[set[int], Structures, set[int], float]:
        """Return the layers to drop, the structures in the others, those to remove, and the cost nearest to a goal."""
        order = sorted(range(len(self.influences)), key=lambda number: self.influences[number])
        dropped = set(order[:gone])
        inside = frozenset(self._numbers(dropped))
        left = self.structures.only(each for each in self.structures.every if each.number not in inside)
        scores = {each.number: self.scores[importance][each.number] for each in left.every}
        cost: Callable[[Collection[int]], float] = lambda removed: self._cost(inside.union(removed))  # noqa: E731
        removed, now = nearest_widths(
            left, scores, cost, goal, self.slim.round_to, list(kinds(left, self.path).values()) if self.slim.equal else ()
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


def plan_of(structures: Structures, removed: Collection[int], layers: Sequence[int] = ()) -> SlimPlan:
    """Return the plan without some structures, and with only these layers if any are named."""
    plan = SlimPlan.of(structures, removed)
    return replace(plan, replacements={"": {"kind": KIND, "kept": list(layers)}}) if layers else plan
