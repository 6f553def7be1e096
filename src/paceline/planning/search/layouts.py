"""Search of the best layouts among all ways to divide a network among devices.

Every layout is checked for legality and bounded (``prediction.layouts.layout_bounds``). Layouts whose bound on memory does not
fit are dropped. The others are predicted in the order of their bounds, until no bound is below the best predictions. So the
ranking equals a full prediction of all (branch and bound: Land and Doig 1960, Econometrica 28(3)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf

import numpy as np

from paceline.array_types import Array, Ints
from paceline.hardware import Cluster
from paceline.planning.compare.layout_difference import least_resolved_ratio
from paceline.planning.search.candidates import with_choices
from paceline.planning.search.layout_space import LayoutSpace, logits_blocks
from paceline.planning.search.ranking import PLAIN
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.planning.search.tally import Exclusions
from paceline.prediction import ORDINARY, Predictor, StepPredictor
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps
from paceline.prediction.layouts.layout_bounds import LayoutBounds
from paceline.prediction.layouts.layout_slices import with_common
from paceline.prediction.layouts.many_lengths import least_network
from paceline.prediction.layouts.many_tasks import least_before_s
from paceline.prediction.layouts.pipeline_bounds import PipelineShape
from paceline.prediction.step.memory import usable_bytes
from paceline.prediction.tasks.resized import with_sequences
from paceline.prediction.tasks.task_step import trained_workload
from paceline.strategy import Strategy
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recompute import Recompute
from paceline.strategy.strategy import CHOICES
from paceline.workload.table import Workload

KEPT = 8
"""Number of divisions (tensor, context, pipeline, batch) whose best layout is returned."""
Progress = Callable[[str], None]
Division = tuple[int, str, int, int, int, int]
"""Batch, precision, tensor, context, expert, pipeline."""
_SIZES, _DETOURS, _TIMES = 2**31, 2**7, 2**20
"""More than the devices that divide a network, the choices that are not the usual, and the micro steps of a layout."""
_UNEVEN = "the batch does not divide among the replicas and micro batches, or not in rounds of the stages"
_SLOWER = "provably slower than those that were predicted: a bound of its step is above them"


def silent(line: str) -> None:
    """Ignore a progress message."""


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """Result of a search of layouts.

    Attributes:
        candidates: the best layout of each division, the best first, then the simplest that the model does not tell from the
            best. ``steps``: their predictions.
        considered: number of layouts, legal or not. ``legal``: those that the network, the cluster and the batch allow.
        too_large: legal ones that do not fit the device's memory. ``bounded``: those that fit and are slower by their bound.
        predicted: number of layouts that were predicted in full.
        least: the layout that lacks least memory if nothing fits, and the missing bytes.
    """

    candidates: tuple[Candidate, ...]
    steps: Steps
    considered: int
    legal: int
    too_large: int
    bounded: int
    predicted: int
    illegal: Mapping[str, int] = field(default_factory=dict)
    least: tuple[Candidate, float] | None = None

    def tally(self, left_out: Exclusions) -> None:
        """Count the layouts that were left out by reason, except those that do not fit."""
        for reason, count in self.illegal.items():
            left_out.add(reason, count)
        left_out.add(_SLOWER, self.bounded)


def search_layouts(
    workload: Workload,
    cluster: Cluster,
    space: LayoutSpace,
    *,
    predictor: StepPredictor = ORDINARY,
    keep: int = KEPT,
    weight: Callable[[int], float] = lambda batch: 1.0 / batch,
    progress: Progress = silent,
    hosts: SlowHosts | None = None,
) -> LayoutSearch:
    """Search the best layouts of ``space`` on ``cluster``, by the step times ``weight`` of its batch.

    A choice that is not plain counts as in a plan's ranking.

    Args:
        keep: number of divisions (batch, tensor, context, pipeline) whose best layout is returned.
        hosts: if given, the step is the expected one, else the predicted one.
        weight: factor on the step time for a batch.
        progress: called with a line at intervals.
    """
    return Layouts(workload, cluster, space, predictor=predictor, weight=weight, progress=progress, hosts=hosts).best(keep)


class Layouts:
    """Screened layouts of a space on a cluster, of which the best are predicted. Arguments as for ``search_layouts``.

    A second search that keeps more divisions predicts only what the first has not.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        space: LayoutSpace,
        *,
        predictor: StepPredictor = ORDINARY,
        weight: Callable[[int], float] = lambda batch: 1.0 / batch,
        progress: Progress = silent,
        hosts: SlowHosts | None = None,
    ) -> None:
        # Observed steps say nothing about the bound of a layout. Their correction is applied to the layouts that remain.
        plain = predictor.uncorrected
        if plain is not predictor:
            plain = plain.changed(loader=0.0)
        self._workload, self._predictor, self._progress = workload, predictor, progress
        self._corrected = predictor is not plain
        self._screened = _LayoutScreening(workload, cluster, space, plain, weight, hosts)
        self._screened.screen(progress)

    def best(self, keep: int = KEPT) -> LayoutSearch:
        """Return the best layouts of the ``keep`` best divisions."""
        search = self._screened
        search.predict(keep, self._progress)
        best = [of[2:] for of in sorted(search.best.values(), key=lambda of: of[:2])[:keep]]
        best += [simple for simple in search.simplest if simple[0] not in [candidate for candidate, _ in best]]
        candidates = [candidate for candidate, _ in best]
        steps = merged_steps(*(([place], step) for place, (_, step) in enumerate(best)))
        if self._corrected:
            steps = self._predictor.many(self._workload, candidates)
        return LayoutSearch(
            candidates=tuple(candidates),
            steps=steps,
            considered=search.considered,
            legal=search.legal,
            too_large=search.too_large,
            bounded=len(search.order) - search.tried,
            predicted=search.predicted,
            illegal=dict(search.illegal),
            least=search.least,
        )


class _LayoutScreening:
    """Working state of one layout search."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        space: LayoutSpace,
        predictor: Predictor,
        weight: Callable[[int], float],
        hosts: SlowHosts | None,
    ) -> None:
        self.workload, self.cluster, self.space, self.predictor = workload, cluster, space, predictor
        self.hosts = hosts
        mesh = {name: value for name, value in space.common.items() if CHOICES[name].part == "parallelism"}
        self.common = {CHOICES[name].field: value for name, value in mesh.items()}
        others = {name: value for name, value in space.common.items() if name not in mesh}
        self.template = with_choices(Strategy.of(global_batch_size=1, optimizer=space.optimizer), others)
        self.weights = np.array([weight(batch) for batch in space.batches])
        self.illegal: Counter[str] = Counter()
        every = tuple(space.slices(cluster))
        task = self.template.task
        network = workload if task.alone else with_sequences(trained_workload(workload, task), task.sequences)
        model = predictor.model(least_network(network, self.template.tokens_per_sample))
        self.shared = space.shared(cluster)
        bounds = LayoutBounds(model, cluster, every, self.shared, space.batches, self.template, self.common)
        self.shapes = tuple(space.shapes(cluster, bounds.blocks, logits_blocks(workload)))
        each = len(self.shared) * len(space.batches)
        slices = []
        for own in every:
            if why := bounds.refused(own):
                self.illegal[why] += len(self.shapes) * each
            else:
                slices.append(own)
        self.bounds = replace(bounds, slices=tuple(slices), shapes=self.shapes)
        self.considered = len(every) * len(self.shapes) * each
        self.legal = self.too_large = self.predicted = self.tried = 0
        self.least: tuple[Candidate, float] | None = None
        self.order: Ints = np.zeros(0, dtype=np.int64)
        self.score: Array = np.zeros(0)
        self.place: Ints = np.zeros((0, 4), dtype=np.int64)
        self.simple: Ints = np.zeros(0, dtype=np.int64)
        self.known: dict[int, tuple[float, Candidate, Steps]] = {}
        self.steps_of: dict[Strategy, Steps] = {}
        self.scheduled: dict[int, float] = {}
        self.best: dict[Division, tuple[float, int, Candidate, Steps]] = {}
        self.simplest: tuple[tuple[Candidate, Steps], ...] = ()

    def screen(self, progress: Progress) -> None:
        """Check legality, memory and bounds of all layouts."""
        scores, places, simple = [], [], []
        for number, shape in enumerate(self.shapes if self.bounds.slices else ()):
            score, place, ranks = self._screened(number, shape)
            scores.append(score)
            places.append(place)
            simple.append(ranks)
            progress(f"{number + 1} of {len(self.shapes)} pipelines: {self.legal:,} legal layouts")
        if scores:
            self.score, self.place, self.simple = np.concatenate(scores), np.concatenate(places), np.concatenate(simple)
            self.order = np.argsort(self.score, kind="stable")

    def _screened(self, number: int, shape: PipelineShape) -> tuple[Array, Ints, Ints]:
        """Return the layouts with this pipeline that may fit: bounds as scores, positions, and ranks by simplicity."""
        bounds, space = self.bounds, self.space
        of_shape = bounds.bounds(shape)
        times, legal = of_shape.micro_batches, of_shape.legal
        if space.micro_batches:
            legal = legal & np.isin(times, space.micro_batches)[:, None, :]
        divided = np.array([own.tensor * own.context * shape.stages > 1 for own in bounds.slices], dtype=np.bool_)
        divided = np.broadcast_to(divided[:, None, None], legal.shape)
        self.considered -= int((~divided).sum())  # they divide nothing
        self.illegal[_UNEVEN] += int((~legal & divided).sum())
        possible = legal & divided
        self.legal += int(possible.sum())
        available = usable_bytes(self.cluster.device)
        fits = possible & (of_shape.memory_bytes <= available)
        large = possible & ~fits
        self.too_large += int(large.sum())
        if large.any():
            self._note_least(number, np.where(large, of_shape.memory_bytes, inf), times)
        rows = np.flatnonzero(fits.any(axis=(1, 2)))
        if not len(rows):
            return np.zeros(0), np.zeros((0, 4), dtype=np.int64), np.zeros(0, dtype=np.int64)
        least = bounds.seconds(shape, times, rows)
        if not self.template.task.alone:
            least = least + self._before(shape, rows)
        seconds = self._expected(shape, rows, times[rows], least)
        detours = self._detours(shape, rows, times[rows])
        score = seconds * self.weights * (1 + PLAIN * detours)
        at = np.argwhere(fits[rows])
        place = np.column_stack((np.full(len(at), number), rows[at[:, 0]], at[:, 1], at[:, 2]))
        own = [bounds.slices[row] for row in rows.tolist()]
        dimensions = np.array([sum(size > 1 for size in (of.tensor, of.context, of.expert, shape.stages)) for of in own])
        sizes = np.array([of.tensor * of.context * of.expert * shape.stages for of in own])
        ranks = _rank(dimensions[:, None, None], sizes[:, None, None], detours, times[rows][:, None, :])
        return score[tuple(at.T)], place, ranks[tuple(at.T)]

    def _before(self, shape: PipelineShape, rows: Ints) -> Array:
        """Return lower bounds on the parts of a task before its training, shape (rows, 1, batches)."""
        network = least_network(self.workload, self.template.tokens_per_sample)
        model, known = self.predictor.model(network), dict[tuple[int, int, str, int], float]()
        least = np.zeros((len(rows), 1, len(self.space.batches)))
        for place, row in enumerate(rows.tolist()):
            own = self.bounds.slices[row]
            mesh = replace(own.mesh(), pipeline=shape.stages)
            mesh = replace(mesh, data=self.cluster.world_size // mesh.model_devices)
            for number, batch in enumerate(self.space.batches):
                if batch % mesh.data:
                    continue  # illegal
                key = own.tensor, own.context, own.precision, batch
                if key not in known:
                    strategy = replace(self.template, global_batch_size=batch, precision=own.precision, parallelism=mesh)
                    known[key] = least_before_s(model, self.cluster, strategy)
                least[place, 0, number] = known[key]
        return least

    def _expected(self, shape: PipelineShape, rows: Ints, times: Ints, seconds: Array) -> Array:
        """Return expected seconds from predicted ones or their bounds, shape (rows, shardings, batches)."""
        if self.hosts is None or not self.hosts.extra_s:
            return seconds
        of_row, micro_batches = self._launches[rows][:, None, None], np.maximum(times, 1)[:, None, :]
        return self.hosts.expected(seconds, self.cluster.device, of_row, micro_batches, shape.stages, shape.virtual)

    @cached_property
    def _launches(self) -> Array:
        """Kernels of a micro batch of each slice that a host launches, (slices,)."""
        layers, device = self.common.get("recompute_layers", 0), self.cluster.device
        kinds = [(own.precision, Recompute.of(own.recompute, layers if own.recompute else 0)) for own in self.bounds.slices]
        launches = {kind: self.hosts.launches(device, *kind) if self.hosts else 0.0 for kind in set(kinds)}
        return np.array([launches[kind] for kind in kinds])

    def _detours(self, shape: PipelineShape, rows: Ints, times: Ints) -> Ints:
        """Return the least number of choices that are not plain (``Strategy.detours``), shape (rows, shardings, batches)."""
        own = [self.bounds.slices[row] for row in rows.tolist()]
        sizes = [(of.tensor, of.context, of.expert, 1 + bool(of.recompute), shape.stages) for of in own]
        rare = (shape.schedule is not ONE_FORWARD_ONE_BACKWARD) + (shape.ends != (0, 0)) + bool(self.common.get("offload"))
        of_row = np.array([sum(size > 1 for size in of) + rare for of in sizes])
        divided = [of.tensor * shape.stages > 1 for of in own]
        of_sharding = {
            whole: [(not shares.sharding.is_usual(whole)) + shares.in_node for shares in self.shared] for whole in (False, True)
        }
        shared = np.array([of_sharding[of] for of in divided])
        counted: Ints = of_row[:, None, None] + shared[:, :, None] + (times > 1)[:, None, :]
        return counted

    def _note_least(self, number: int, needed: Array, times: Ints) -> None:
        """Record the layout with the smallest memory shortage."""
        row, sharding, batch = np.unravel_index(int(needed.argmin()), needed.shape)
        lacking = float(needed[row, sharding, batch]) - usable_bytes(self.cluster.device)
        if self.least is None or lacking < self.least[1]:
            self.least = self._candidate(number, int(row), int(sharding), int(batch), int(times[row, batch])), lacking

    def _candidate(self, number: int, row: int, sharding: int, batch: int, times: int) -> Candidate:
        """Return one layout as a strategy."""
        shape, own, size = self.shapes[number], self.bounds.slices[row], self.space.batches[batch]
        shares = self.shared[sharding]
        mesh = replace(
            own.mesh(),
            data=self.cluster.world_size // (own.tensor * own.context * shape.stages),
            pipeline=shape.stages,
            virtual_stages=shape.virtual,
            schedule=shape.schedule,
            first_stage_layers=shape.ends[0],
            last_stage_layers=shape.ends[1],
            sharding=shares.sharding,
            shard_devices=shares.groups(own, shape.stages, self.cluster) or 0,
            micro_batches=times,
            recompute=own.recompute,
        )
        mesh = with_common(mesh, self.common)
        return self.cluster, replace(self.template, global_batch_size=size, precision=own.precision, parallelism=mesh)

    def _division(self, place: Sequence[int]) -> Division:
        number, row, _, batch = place
        own = self.bounds.slices[row]
        return self.space.batches[batch], own.precision, own.tensor, own.context, own.expert, self.shapes[number].stages

    def predict(self, keep: int, progress: Progress) -> None:
        """Predict layouts in full that may be the best of the ``keep`` best divisions, in the order of bounds."""
        without_sharding = np.unique(self.place * np.array([1, 1, 0, 1]), axis=0)
        enough = min(keep, len({self._division(place) for place in without_sharding.tolist()}))
        limit = self._limit(enough)
        for bound, index in self._by_bound():
            if bound > limit:
                break
            division = self._division(self.place[index].tolist())
            if bound >= self._least(division):
                continue
            score, candidate, step = self._predicted(index)
            if score < self._least(division):
                self.best[division] = score, index, candidate, step
                limit = self._limit(enough)
            progress(f"{self.predicted:,} layouts predicted whole")
        self._predict_simpler()

    def _limit(self, enough: int) -> float:
        """Return the score that a layout among the best of ``enough`` divisions does not exceed; inf with fewer divisions."""
        scores = sorted(of[0] for of in self.best.values())
        return max(scores[enough - 1], scores[0] * (1 + PLAIN)) if len(scores) >= max(1, enough) else inf

    def _least(self, division: Division) -> float:
        """Return the best score of a division; inf without one."""
        return self.best[division][0] if division in self.best else inf

    def _by_bound(self) -> Iterator[tuple[float, int]]:
        """Yield layouts in the order of their bounds. The schedule of its passes bounds a layout before its turn."""
        closer = list[tuple[float, int, int]]()
        for number, index in enumerate(self.order.tolist()):
            bound = float(self.score[index])
            while closer and closer[0][0] <= bound:
                first, _, least = heappop(closer)
                yield first, least
            if bound < self._least(self._division(self.place[index].tolist())):
                heappush(closer, (self._scheduled(index), number, index))
        while closer:
            first, _, least = heappop(closer)
            yield first, least

    def _scheduled(self, index: int) -> float:
        """Return the bound of one layout from the schedule of its passes."""
        if index not in self.scheduled:
            self.scheduled[index] = self._bound_by_schedule(index)
        return self.scheduled[index]

    def _bound_by_schedule(self, index: int) -> float:
        number, row, sharding, batch = self.place[index].tolist()
        shape, bound = self.shapes[number], float(self.score[index])
        if shape.virtual == 1 and not shape.schedule.splits_backward:
            return bound
        times = self._times(number, row, batch)
        scheduled = np.array([[[self.bounds.scheduled_seconds(shape, times, row, sharding)]]])
        seconds = float(self._expected(shape, np.array([row]), np.array([[times]]), scheduled)[0, 0, 0])
        return max(bound, seconds * float(self.weights[batch]) * (1 + PLAIN * int(_detours_of(self.simple[index]))))

    def _times(self, number: int, row: int, batch: int) -> int:
        """Return the micro batches of a step of one layout."""
        own, devices = self.bounds.slices[row], self.cluster.world_size
        replicas: int = devices // (own.tensor * own.context * self.shapes[number].stages)
        return self.space.batches[batch] // (own.micro_batch_size * replicas)

    def _predict_simpler(self) -> None:
        """Predict the simplest layout that the model does not tell from the best, on its batch and at its precision."""
        if not self.best:
            return
        _, first, candidate, step = min(self.best.values(), key=lambda of: of[:2])
        _, row, _, batch = self.place[first].tolist()
        limit = self._seconds(candidate, step) * self.weights[batch] * least_resolved_ratio()
        precisions = np.array([own.precision == self.bounds.slices[row].precision for own in self.bounds.slices])
        bound = self.score / (1 + PLAIN * _detours_of(self.simple))
        job = (self.place[:, 3] == batch) & precisions[self.place[:, 1]]
        tried = np.flatnonzero(job & (bound <= limit) & (self.simple < self.simple[first]))
        for level in np.unique(self.simple[tried]).tolist():
            least, found = limit, None
            members = tried[self.simple[tried] == level]
            for index in members[np.argsort(bound[members], kind="stable")].tolist():
                if bound[index] > least:
                    break
                _, candidate, step = self._predicted(index)
                usable = step.fits[0] and not step.refused
                seconds = self._seconds(candidate, step) * self.weights[batch] if usable else inf
                if seconds <= least:
                    least, found = seconds, (candidate, step)
            if found:
                self.simplest = (found,)
                return

    def _predicted(self, index: int) -> tuple[float, Candidate, Steps]:
        """Return the score of one layout; inf if it does not fit."""
        if index not in self.known:
            self.known[index] = self._predict_whole(self.place[index].tolist())
        return self.known[index]

    def _predict_whole(self, place: Sequence[int]) -> tuple[float, Candidate, Steps]:
        number, row, sharding, batch = place
        candidate = self._candidate(number, row, sharding, batch, self._times(number, row, batch))
        steps = self._steps(candidate)
        self.tried += 1
        if 0 in steps.refused:
            self.illegal[steps.refused[0]] += 1
            self.legal -= 1
            return inf, candidate, steps
        if not steps.fits[0]:
            self.too_large += 1
            return inf, candidate, steps
        self.predicted += 1
        score = self._seconds(candidate, steps) * self.weights[batch] * (1 + PLAIN * candidate[1].detours)
        return float(score), candidate, steps

    def _seconds(self, candidate: Candidate, steps: Steps) -> float:
        """Return the seconds of a predicted step that count."""
        return float((self.hosts.of_candidates([candidate], steps.step_s) if self.hosts else steps.step_s)[0])

    def _steps(self, candidate: Candidate) -> Steps:
        """Return the full prediction. Shardings with one form for divided replicas (``Sharding.divided``) share it."""
        cluster, strategy = candidate
        mesh = strategy.parallelism
        real = replace(strategy, parallelism=replace(mesh, sharding=mesh.real_sharding))
        if real not in self.steps_of:
            self.steps_of[real] = self.predictor.many(self.workload, [(cluster, real)])
        return self.steps_of[real]


def _rank(dimensions: Ints, sizes: Ints, detours: Ints, times: Ints) -> Ints:
    """Return the places of layouts by ``Strategy.simplicity`` as whole numbers, from arrays that broadcast."""
    ranks: Ints = ((dimensions * _SIZES + sizes) * _DETOURS + detours) * _TIMES + np.minimum(times, _TIMES - 1)
    return ranks


def _detours_of(ranks: Ints) -> Ints:
    """Return the choices that are not the usual, from ranks."""
    detours: Ints = ranks // _TIMES % _DETOURS
    return detours
