"""Decision whether a plan divides the network among devices, and search of such layouts on each cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.hardware import Cluster
from paceline.planning.compare.strategy_text import Wanted
from paceline.planning.search.candidates import precision_left_out, with_choices
from paceline.planning.search.choice import Choice
from paceline.planning.search.layout_space import LayoutSpace, dividing_shardings, powers
from paceline.planning.search.layouts import KEPT, Layouts, LayoutSearch, Progress, silent
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.planning.search.space import MODEL_AXES, Space
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import StepPredictor
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps
from paceline.prediction.mesh.expert_parallel import expert_count, has_experts
from paceline.prediction.passes.offload import can_offload
from paceline.prediction.passes.recompute import choices_that_save
from paceline.strategy import EXCHANGES, Strategy
from paceline.strategy.compression.compressions import DENSE
from paceline.strategy.offload import NO_OFFLOAD, Offload
from paceline.strategy.parallelism import DIVIDING
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recompute import NO_RECOMPUTE, Recompute
from paceline.strategy.sharding import SHARDINGS
from paceline.strategy.strategy import CHOICES
from paceline.strategy.usual_precision import usual_precision
from paceline.workload.table import Workload

SAMPLES = 8
"""Without a batch, global batches range from a sample for each device down to one for each of this many devices."""


_BESTS = " on the preferred cluster, and holds the best of each other one"
_NEAR = (
    " Contexts, selective recomputation, zero-bubble, uneven ends and shares within a node were tried for this mixture with "
    "the other sizes of its best layout alone."
)


@dataclass(frozen=True, slots=True)
class LayoutSearches:
    """Results of the layout searches on all clusters.

    Attributes:
        near: whether some choices were tried only near the best layout.
        clusters: number of clusters searched. One of several is searched for more than its best layout.
    """

    searches: tuple[LayoutSearch, ...]
    near: bool = False
    clusters: int = 1

    @property
    def legal(self) -> int:
        """Number of legal layouts."""
        return sum(search.legal for search in self.searches)

    @property
    def too_large(self) -> int:
        """Number of layouts that do not fit."""
        return sum(search.too_large for search in self.searches)

    @property
    def least(self) -> list[tuple[Candidate, float]]:
        """For each cluster, the layout with the smallest memory shortage, and the missing bytes."""
        return [search.least for search in self.searches if search.least]

    def added(self, candidates: Sequence[Candidate], steps: Steps) -> tuple[list[Candidate], Steps]:
        """Return other candidates and their steps, followed by the best layouts of each cluster."""
        joined, parts = list(candidates), [(range(len(candidates)), steps)]
        for search in self.searches:
            parts.append((range(len(joined), len(joined) + len(search.candidates)), search.steps))
            joined += search.candidates
        return joined, merged_steps(*parts)

    @property
    def fitting(self) -> tuple[list[Candidate], Array] | None:
        """Return the best layouts of each cluster, with seconds of their steps; None if nothing fits."""
        candidates = [candidate for search in self.searches for candidate in search.candidates]
        return (candidates, np.concatenate([s.steps.step_s for s in self.searches])) if candidates else None

    @property
    def sentence(self) -> str:
        """Summary of the searches in one sentence; empty without a search."""
        if not self.searches:
            return ""
        bounded, predicted = (sum(getattr(search, name) for search in self.searches) for name in ("bounded", "predicted"))
        return (
            f"The search weighed {self.legal:,} layouts that divide the network: {self.too_large:,} do not fit, {bounded:,} "
            f"cannot beat the best by a bound, and {predicted:,} were predicted whole: the ranking is that of all"
            f"{_BESTS if self.clusters > 1 else ''}.{_NEAR if self.near else ''}"
        )


def divides(space: Space, legal: Sequence[Candidate], steps: Steps) -> bool:
    """Return whether layouts are searched: sizes are named, or no device holds the whole training state (DDP)."""
    if space.divides:
        return any(max(sizes) > 1 for sizes in space.model_sizes)
    if not any(cluster.world_size > 1 for cluster in space.clusters):
        return False
    fits = steps.fits.tolist()
    return not any(fits[i] and not strategy.parallelism.sharding.shares_out for i, (_, strategy) in enumerate(legal))


Prefer = Callable[[Sequence[Candidate], Array], int]


def _fastest(candidates: Sequence[Candidate], step_s: Array) -> int:
    """Return the index of the candidate with the fewest seconds a sample."""
    return int(np.argmin(step_s / [strategy.global_batch_size for _, strategy in candidates]))


def _near_alone(workload: Workload, space: Space) -> bool:
    """Return whether some choices are tried only near the best layout."""
    return has_experts(workload) and not space.divides


class _Place:
    """Layouts on one cluster, with the searches of them so far."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        layouts: LayoutSpace,
        target: TrainingTarget,
        predictor: StepPredictor,
        hosts: SlowHosts,
        progress: Progress,
        *,
        mixture: bool,
    ) -> None:
        def screened(tried: LayoutSpace) -> Layouts:
            return Layouts(
                workload,
                cluster,
                tried,
                predictor=predictor,
                weight=lambda batch: target.samples(Strategy.of(global_batch_size=batch)) / batch,
                progress=lambda line: progress(f"{cluster.world_size:,} devices, {line}"),
                hosts=hosts,
            )

        self._screened, self._layouts, self._mixture = screened, layouts, mixture
        self._first = screened(_plain(layouts) if mixture else layouts)
        self._near: dict[Strategy, Layouts] = {}
        self.searches: list[LayoutSearch] = []

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The best layouts of the last search, the best first."""
        return self.searches[-1].candidates if self.searches else ()

    def search(self, keep: int) -> None:
        """Search the best layouts of ``keep`` divisions; of a mixture, then all choices near the best."""
        self.searches = [self._first.best(keep)]
        if self._mixture and self.candidates:
            best = self.searches[0].candidates[0][1]
            if best not in self._near:
                self._near[best] = self._screened(_near(self._layouts, best))
            self.searches.append(self._near[best].best(keep))


def search_divided(
    workload: Workload,
    space: Space,
    target: TrainingTarget,
    left_out: Exclusions,
    predictor: StepPredictor,
    progress: Progress = silent,
    offload: Offload = NO_OFFLOAD,
    prefer: Prefer = _fastest,
) -> LayoutSearches:
    """Search the best layouts on every cluster of ``space``, and count the others by reason.

    The cluster with the preferred layout is searched for ``KEPT`` divisions, other clusters for their best layout.

    Args:
        space: with its optimizer.
        offload: state in host memory, if that is fixed.
        prefer: returns the index of the preferred candidate, from the best of each cluster and their steps' seconds.
    """
    if not _dense(space):
        left_out.add("a divided network is tried with dense gradients over allreduce", 1)
        return LayoutSearches(())
    places, hosts = [], SlowHosts.of(workload, predictor)
    for cluster, common in product(space.clusters, _common(space, offload)):
        layouts = _layouts(workload, cluster, space, target, common)
        if layouts is not None:
            places.append(
                _Place(workload, cluster, layouts, target, predictor, hosts, progress, mixture=_near_alone(workload, space))
            )
    if len(places) > 1:
        for place in places:
            place.search(1)
        best = [place for place in places if place.candidates]
        if best:
            first = [place.searches[-1] for place in best]
            chosen = prefer([of.candidates[0] for of in first], np.array([of.steps.step_s[0] for of in first]))
            best[chosen].search(KEPT)
    else:
        for place in places:
            place.search(KEPT)
    searches = tuple(search for place in places for search in place.searches)
    for search in searches:
        search.tally(left_out)
    return LayoutSearches(searches, near=_near_alone(workload, space), clusters=len(places))


def _plain(layouts: LayoutSpace) -> LayoutSpace:
    """Return the space without those choices of a mixture that are tried only near its best layout.

    Bounds of its many groups are too far from the step to rank all combinations within a minute.
    """
    recomputes = tuple(each for each in map(Recompute.of, layouts.recomputes) if not each.parts)
    schedules = (ONE_FORWARD_ONE_BACKWARD.name,)
    recomputes = recomputes or (NO_RECOMPUTE,)
    return replace(layouts, contexts=(1,), schedules=schedules, recomputes=recomputes, balanced=False, node_groups=False)


def _near(layouts: LayoutSpace, best: Strategy) -> LayoutSpace:
    """Return all choices with the sizes of the best layout."""
    mesh = best.parallelism
    return replace(
        layouts,
        batches=(best.global_batch_size,),
        precisions=(best.precision,),
        tensors=(mesh.tensor,),
        pipelines=(mesh.pipeline,),
        experts=(mesh.expert,),
        micro_batch_sizes=tuple(sorted({best.micro_batch_size, 1} & set(layouts.micro_batch_sizes))),
    )


def _common(space: Space, offload: Offload) -> list[Mapping[str, Any]]:
    """Return the different combinations of choices that all layouts of a search share, without defaults."""
    plain, found = Strategy.of(global_batch_size=1), list[Mapping[str, Any]]()
    for combination in space.combinations:
        strategy = with_choices(plain, combination)
        common = {
            name: value
            for name, value in {"offload": offload, **space.of_shares, **combination}.items()
            if (value if CHOICES[name].part == "parallelism" else strategy.choice(name))
            not in (CHOICES[name].default, plain.choice(name))
        }
        found += [] if common in found else [common]
    return found


def _dense(space: Space) -> bool:
    compressions = space.compressions or (DENSE.name,)
    return DENSE.name in compressions and any(EXCHANGES[name].by_engine for name in space.exchanges)


def narrowed(wanted: Wanted, best: Choice, workload: Workload, space: Space) -> Space | None:
    """Restrict ``space`` to the wanted layouts on the cluster of the best choice.

    None if no division is wanted, or if a search of layouts does not choose one of the wanted values. Sizes that the user did
    not name are those that a search tries.
    """
    values: dict[str, tuple[object, ...]] = {_SEARCHED[name]: (of,) for name, of in wanted.items() if name in _SEARCHED}
    if len(values) < len(wanted) or not any(isinstance(wanted.get(name), int) and wanted[name] != 1 for name in DIVIDING):
        return None
    cluster = best.cluster
    usual = {
        "tensors": space.tensors or tuple(powers(cluster.devices_per_node)),
        "contexts": space.contexts or _contexts(workload, cluster),
        "pipelines": space.pipelines or tuple(powers(cluster.world_size)),
        "batches": space.batches or (best.strategy.global_batch_size,),
    }
    return replace(space, clusters=(cluster,), **{**usual, **values})  # type: ignore[arg-type]


_SEARCHED = {
    item.word: item.plan.axis
    for item in CHOICES.values()
    if item.plan and item.plan.axis in {each.name for each in fields(LayoutSpace)} and not item.plan.single
} | {CHOICES["grad_accum_steps"].word: "micro_batches"}
"""Choices of a search of layouts, and the field of ``Space`` that holds their values."""


_SAME = tuple(axis.name for axis in fields(LayoutSpace) if str(axis.type).startswith("tuple") and hasattr(Space, axis.name))
"""Axes of a search of layouts that ``Space`` has too."""


def _layouts(
    workload: Workload, cluster: Cluster, space: Space, target: TrainingTarget, common: Mapping[str, Any]
) -> LayoutSpace | None:
    """Return the layouts to search on a cluster; None without any."""
    world = cluster.world_size
    choose = not space.precisions
    tried = tuple(p for p in space.tried_precisions if not precision_left_out(cluster, p, choose, workload))
    usual = usual_precision(workload, cluster.device).name
    precisions = (usual,) if choose and usual in tried else tried
    batches = space.batches or (space.batches_on(world, target) if target.curve else _batches(world, space.micro_batch_sizes))
    batches = tuple(batch for batch in batches if batch <= target.largest_batch)
    shardings = tuple(
        name
        for name in space.divided_shardings or space.shardings
        if all(space.gathers(p, SHARDINGS[name].divided.name) for p in precisions)
    )
    if precisions:
        shardings = dividing_shardings(shardings, space.optimizer, common, precisions[0])
    if (
        world == 1
        or not precisions
        or not shardings
        or not batches
        or (common.get("offload") and not can_offload(workload.num_parameters, cluster))
    ):
        return None
    unnamed: dict[str, tuple[int, ...]] = {
        "experts": tuple(expert_groups(workload, world)),
        "virtual_stages": LayoutSpace.virtual_stages,
        "micro_batch_sizes": LayoutSpace.micro_batch_sizes,
        **(dict.fromkeys(MODEL_AXES, (1,)) if space.divides else {"contexts": _contexts(workload, cluster)}),
    }
    same = {name: getattr(space, name) or unnamed.get(name, ()) for name in _SAME}
    decided: dict[str, Any] = {"batches": batches, "precisions": precisions, "shardings": shardings}
    if space.recomputes == Space.recomputes:
        decided["recomputes"] = choices_that_save(workload)
    return LayoutSpace(**{**same, **decided}, node_groups=space.node_groups, common=common, optimizer=space.optimizer)


def _contexts(workload: Workload, cluster: Cluster) -> tuple[int, ...]:
    """Return default sizes of a context group: powers of two within a node."""
    return tuple(powers(min(cluster.devices_per_node, 16) if workload.attends else 1))


def expert_groups(workload: Workload, world: int) -> Iterator[int]:
    """Yield group sizes that can share the experts of a mixture: powers of two that divide both numbers."""
    count = expert_count(workload)
    return (size for size in powers(max(1, min(count, world))) if count % size == 0 and world % size == 0)


def _batches(world: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return batches of one sample for each device, for every second device, and so on; or of ``sizes`` in place of one."""
    shares = [world // share for share in powers(SAMPLES) if world % share == 0]
    return tuple(sorted({share * size for share in shares for size in sizes or (1,)}))
