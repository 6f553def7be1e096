"""Choice of the layers to split and of their ranks: faster in measurements, with the least loss."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import torch
from torch import nn

from paceline.errors import UserError, check_name
from paceline.slimming.latency.low_rank_times import chain_seconds
from paceline.slimming.methods.low_rank import FORMS, most_ranks, ranks_at, reconstruction_error, refusal, split
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.eval_mode import eval_mode
from paceline.units import format_seconds

LEVELS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
"""Errors at which ranks of ``tucker`` are searched: pairs with equal loss on both sides."""
WORTH = 0.95
"""Share of the whole layer's time above which a split's gain is noise."""
ROUND_TO = 8
"""Ranks are multiples of this vector width."""
Way = tuple[str, tuple[int, ...]]
"""A form and its ranks."""
Seconds = Callable[[Mapping[Way, Sequence[nn.Module]], tuple[int, ...]], Mapping[Way, float]]
"""Seconds of consecutive layers, by name, for an input of a shape (``low_rank_times.chain_seconds``)."""


@dataclass(frozen=True, slots=True)
class Split:
    """One way to compute a layer.

    Attributes:
        form: ``whole``, or a low-rank form with its ``ranks``. ``error``: ``|W - W_r|^2 / |W|^2``. ``seconds``: measured alone.
    """

    form: str
    ranks: tuple[int, ...]
    error: float
    seconds: float


@dataclass(frozen=True)
class RankChoice:
    """Splits of a network.

    Attributes:
        plan: with the replacements. ``splits``: by module, with the time and the error of each.
        whole: the layers that may be split, unsplit. ``kept``: unsplit layers, with the reasons.
        seconds: predicted latency of the network if its latency was given; else the saving, as a negative number.
    """

    plan: SlimPlan
    splits: Mapping[str, Split]
    whole: Mapping[str, Split]
    kept: Mapping[str, str]
    seconds: float


def ranks_for(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    budget_s: float | None = None,
    error: float | None = None,
    whole_s: float = 0.0,
    round_to: int = ROUND_TO,
    forms: Collection[str] = FORMS,
    seconds: Seconds = chain_seconds,
) -> RankChoice:
    """Split layers until a latency is met, or up to an error per layer.

    With ``budget_s`` the split with the largest saving for its error comes first, in any layer. Then unused budget goes back to
    layers. With ``error`` each layer takes the fastest split within the error.

    Args:
        inputs: an example, of the size whose latency counts.
        budget_s: budget of the whole network's latency, which took ``whole_s``, measured as the layers are (``least_seconds``).
        error: instead, of each layer.
        round_to: ranks are multiples of it, as the target's vectors are. ``forms``: allowed forms.
        seconds: seconds of layers; by default measured here on ONNX Runtime.

    Raises:
        UserError: neither or both of budget and error, a budget that no ranks meet; the nearest that can be met is named.
    """
    if (budget_s is None) == (error is None):
        raise UserError("ranks need a budget of latency or an error of each layer", "give one of `budget_s` and `error`")
    for form in forms:
        check_name("form", form, FORMS)
    calls, kept = splittable(model, inputs)
    options: dict[str, list[Split]] = {}
    for name, shapes in calls.items():
        options[name] = _options(model.get_submodule(name), shapes, round_to, forms, seconds)
        if len(options[name]) == 1:
            kept[name] = "no split of it was measured to be faster"
    whole = {name: every[0] for name, every in options.items()}
    if error is not None:
        chosen = {name: _fastest(every, error) for name, every in options.items()}
    else:
        assert budget_s is not None
        chosen = _splits_in_budget(options, budget_s, whole_s)
    splits = {name: each for name, each in chosen.items() if each.form != "whole"}
    replacements = {name: _settings((each.form, each.ranks)) for name, each in splits.items()}
    return RankChoice(SlimPlan({}, {}, {}, replacements), splits, whole, kept, whole_s - _saved(chosen, options))


def splittable(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[dict[str, Counter[tuple[int, ...]]], dict[str, str]]:
    """Return the number of runs of each splittable layer by input shape, and the reasons against the other layers."""
    calls: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    kept: dict[str, str] = {}
    owners = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    hooked, handles = [], []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            tied = any(owners[id(each)] > 1 for each in module.parameters(recurse=False))
            frozen = not all(each.requires_grad for each in module.parameters(recurse=False))
            if why := refusal(module) or ("its weight is another module's too" if tied else "frozen" if frozen else ""):
                kept[name] = why
                continue

            def note(_: nn.Module, given: tuple[Any, ...], name: str = name) -> None:
                calls[name][tuple(given[0].shape)] += 1

            hooked.append(name)
            handles.append(module.register_forward_pre_hook(note))
    try:
        with torch.no_grad(), eval_mode(model):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    silent = {name: "it does not run on these inputs" for name in hooked if name not in calls}
    return dict(calls), kept | silent


def _options(
    layer: nn.Module, shapes: Counter[tuple[int, ...]], round_to: int, forms: Collection[str], seconds: Seconds
) -> list[Split]:
    """Return the whole layer, then the Pareto front of splits by time and error; the fastest last."""
    ways: list[Way] = [("whole", ()), *(way for form in forms for way in _ranks(layer, form, round_to))]
    chains = {way: [layer] if way[0] == "whole" else list(split(layer, _settings(way)).children()) for way in ways}
    taken = dict.fromkeys(ways, 0.0)
    for shape, times in shapes.items():
        for way, each in seconds(chains, shape).items():
            taken[way] += each * times
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    whole = Split("whole", (), 0.0, taken[ways[0]])
    faster = [way for way in ways[1:] if taken[way] < WORTH * whole.seconds]
    best: list[Split] = []
    for found in sorted((Split(*way, reconstruction_error(weight, *way), taken[way]) for way in faster), key=_by_time):
        if not best or found.error < best[-1].error:
            best.append(found)
    return [whole, *reversed(best)]


def _by_time(split: Split) -> tuple[float, float]:
    return split.seconds, split.error


def _settings(way: Way) -> dict[str, Any]:
    return {"kind": "low_rank", "form": way[0], "ranks": list(way[1])}


def _ranks(layer: nn.Module, form: str, round_to: int) -> Iterator[Way]:
    """Yield ranks of a form below full rank, in multiples."""
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    if isinstance(layer, nn.Linear) and form != "svd":
        return
    full = most_ranks(weight, form)
    if form == "svd":
        yield from ((form, (rank,)) for rank in range(round_to, full[0], round_to))
        return
    near = [ranks_at(weight, form, level) for level in LEVELS]
    rounded = [tuple(min(-(-rank // round_to) * round_to, most) for rank, most in zip(e, full, strict=True)) for e in near]
    yield from ((form, ranks) for ranks in dict.fromkeys(rounded) if ranks != full)


def _fastest(every: list[Split], error: float) -> Split:
    return next(each for each in reversed(every) if each.error <= error)


def _saved(chosen: Mapping[str, Split], options: Mapping[str, list[Split]]) -> float:
    return sum(options[name][0].seconds - each.seconds for name, each in chosen.items())


def _splits_in_budget(options: Mapping[str, list[Split]], budget_s: float, whole_s: float) -> dict[str, Split]:
    """Take the split with the best saving for its error, repeatedly, until the budget is met."""
    chosen = {name: every[0] for name, every in options.items()}
    while whole_s - _saved(chosen, options) > budget_s:
        moves = [(name, each) for name, every in options.items() for each in every if each.seconds < chosen[name].seconds]
        if not moves:
            least = whole_s - _saved(chosen, options)
            most = f"{format_seconds(least)} ({floor(100 * whole_s / least) / 100:g}x)"
            what = f"a latency of {format_seconds(budget_s)} ({whole_s / budget_s:.3g}x) cannot be met by low rank"
            raise UserError(what, f"give a larger budget; the least that ranks allow is {most}")

        def worth(move: tuple[str, Split]) -> float:
            name, each = move
            return (chosen[name].seconds - each.seconds) / max(each.error - chosen[name].error, 1e-12)

        name, best = max(moves, key=worth)
        chosen[name] = best
    for name in sorted(chosen, key=lambda name: -chosen[name].error):
        left = budget_s - (whole_s - _saved(chosen, options))
        chosen[name] = next(each for each in options[name] if each.seconds <= chosen[name].seconds + left)
    return chosen
