"""Measurement of the seconds of each layer of an ONNX file, by ONNX Runtime's profile of its nodes and their modules.

The runtime folds, fuses and renames nodes of the file's graph. So the optimised graph is written next to the profile, and each
of its nodes is traced back to nodes of the file, which hold the module's path.
"""

from __future__ import annotations

import ast
import json
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.slim_record import LayerLatency
from paceline.slimming.export.onnx_export import feed, open_session
from paceline.slimming.latency.latency import LEAST_S, WARM_UP
from paceline.slimming.latency.layer_times import REST

OTHER = "other"
"""Name of the steps whose module is unknown."""
TURNS, RUNS = 12, 10
"""Turns, and most runs of a turn: each run adds an event to the profile for each node."""
WEIGHTED = (
    "Conv",
    "ConvTranspose",
    "FusedConv",
    "Gemm",
    "FusedGemm",
    "MatMul",
    "FusedMatMul",
    "LSTM",
    "GRU",
    "RNN",
    "SparseConv",
)
"""Operations of ONNX, of the runtime and of Paceline that have weights if their second operand is constant."""
SCOPES = "pkg.torch.onnx.name_scopes"
_BLOCKED, _TIME = "_nchwc", "_kernel_time"


@dataclass(frozen=True, slots=True)
class SlimLayerProfile:
    """Seconds of one run by the paths of modules.

    Attributes:
        latency_s: latency of the run, without the profiler.
        operations: seconds of each module's operations with weights and the steps fused with them, in order.
        steps: seconds of all other nodes, such as pooling, additions and reshapes. The remainder of the latency is the
            runtime's overhead.
    """

    latency_s: float
    operations: Mapping[str, float]
    steps: Mapping[str, float]

    def by_layer(self, latency_s: float | None = None) -> dict[str, float]:
        """Return the seconds of each module's operations with weights, the remainder under ``REST``; their sum is the latency.

        Args:
            latency_s: latency of one run, if measured better than during the profile.
        """
        latency = self.latency_s if latency_s is None else latency_s
        scale = latency / self.latency_s
        found = {path: scale * each for path, each in self.operations.items()}
        return {**found, REST: latency - sum(found.values())}


def profile(file: str | Path, inputs: tuple[Any, ...], threads: int = 1) -> SlimLayerProfile:
    """Measure the seconds of each layer in a file. Runs with and without the profiler take turns. A node's time is its
    interquartile mean.

    Raises:
        UserError: ONNX Runtime is not installed.
    """
    with tempfile.TemporaryDirectory() as directory:
        plain, watched = open_session(file, threads), open_session(file, threads, trace=directory)
        given = feed(plain, inputs)
        for session in (plain, watched):
            for _ in range(WARM_UP):
                session.run(None, given)
        start = time.perf_counter()
        plain.run(None, given)
        runs = min(max(1, round(LEAST_S / max(time.perf_counter() - start, 1e-7))), RUNS)
        latencies = []
        for _ in range(TURNS):
            start = time.perf_counter()
            for _ in range(runs):
                plain.run(None, given)
            latencies.append((time.perf_counter() - start) / runs)
            for _ in range(runs):
                watched.run(None, given)
        events = json.loads(Path(watched.end_profiling()).read_text(encoding="utf-8"))
        places = _places(Path(file), Path(directory))
    latency = float(_middle(np.array(latencies)))
    nodes, own = _node_seconds(events, TURNS * runs)
    added = _added(np.array(list(nodes.values())), latency)
    # other programs lengthen whole runs, but hardly the interquartile mean of a node: all nodes share the difference
    busy = max(latency / max(sum(nodes.values()) + own, 1e-12), 1.0)
    operations: dict[str, float] = defaultdict(float)
    steps: dict[str, float] = defaultdict(float)
    for name, seconds in nodes.items():
        path, weighted = places.get(name, (OTHER, False))
        (operations if weighted else steps)[path] += busy * max(seconds - added, 0.0)
    return SlimLayerProfile(latency, dict(operations), dict(steps))


def layer_latencies(
    before: Mapping[str, float], after: Mapping[str, float], predicted: Mapping[str, float], replaced: Collection[str] = ()
) -> tuple[LayerLatency, ...]:
    """Pair the layers of the whole network with the slimmed and the predicted ones, each given as a ``by_layer``.

    Args:
        predicted: prediction of the slimmed layers. Modules in a layer, such as attention's projections, count for it.
        replaced: replaced modules: their layers have a prediction of 0. If the whole network was replaced, the layers of both
            are listed one after the other.
    """
    own = after if "" in replaced else {}
    layers = [each for each in dict.fromkeys([*before, *own]) if each != REST]

    def of(path: str) -> str:
        if path == REST:
            return REST
        inside = [each for each in layers if not each or path == each or path.startswith(f"{each}.")]
        return max(inside, key=len, default=REST)

    found = []
    seconds = [_summed((of(path), each) for path, each in one.items()) for one in (before, after, predicted)]
    unknown = {of(path) for path in replaced if path}
    for layer in (*layers, REST):
        whole, small, said = (each.get(layer, 0.0) for each in seconds)
        found.append(LayerLatency(layer, whole, small, 0.0 if layer in unknown else said))
    return tuple(found)


def _summed(parts: Iterator[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, each in parts:
        found[name] += each
    return dict(found)


def _added(seconds: Array, latency_s: float) -> float:
    """Return the profiler's overhead per node: the excess of the sum of nodes over a run without the profiler, at least 0."""
    largest = np.sort(seconds)[::-1]
    each = (np.cumsum(largest) - latency_s) / np.arange(1, len(largest) + 1)
    return max(float(each.max(initial=0.0)), 0.0)


def _node_seconds(events: Sequence[Mapping[str, Any]], runs: int) -> tuple[dict[str, float], float]:
    """Return the seconds of each node in the last runs, and of a run outside its nodes. Nodes in a loop count for the loop."""
    nodes = [each for each in events if each.get("cat") == "Node" and str(each["name"]).endswith(_TIME)]
    calls = sorted((each["ts"], each["dur"]) for each in events if each.get("name") == "model_run")[-runs:]
    starts, lasted = np.array(calls, float).T
    places = {name: number for number, name in enumerate(dict.fromkeys(str(each["name"]) for each in nodes))}
    taken = np.zeros((len(calls), len(places)))
    end = 0
    for each in sorted(nodes, key=lambda each: (each["ts"], -each["dur"])):
        call = int(np.searchsorted(starts, each["ts"], "right")) - 1
        if call >= 0 and each["ts"] + each["dur"] > end:
            taken[call, places[str(each["name"])]] += each["dur"] * 1e-6
        end = max(end, each["ts"] + each["dur"])
    middles = _middle(taken)
    own = float(_middle(lasted * 1e-6 - taken.sum(axis=1)))
    return {name.removesuffix(_TIME): float(middles[number]) for name, number in places.items()}, max(own, 0.0)


def _middle(times: Array) -> Array:
    """Return the interquartile mean along the first axis: as robust as a median, and finer than the profile's microseconds."""
    cut = len(times) // 4
    return np.asarray(np.sort(times, axis=0)[cut : len(times) - cut].mean(axis=0))


def _places(file: Path, directory: Path) -> dict[str, tuple[str, bool]]:
    """Return the path of each node in the runtime, and whether it has weights."""
    import onnx

    original = _Graph(onnx.load(file).graph)
    made = _Graph(onnx.load(next(directory.glob("*.onnx"))).graph)
    found: dict[str, tuple[str, bool]] = {}
    for node in made.nodes:
        if (origin := original.origin(node)) is not None:
            weighted = made.is_weighted(node)  # then the operation is that origin, or slightly before the fused step
            named = original.weighted_before(origin, node.input) or origin if weighted else origin
            found[node.name] = original.path(named), weighted
    for node in made.nodes:  # reshapes or layout changes for a neighbour
        if node.name not in found:
            beside = [*made.after(node), *made.before(node)]
            found[node.name] = next((found[each.name][0] for each in beside if each.name in found), OTHER), False
    return found


class _Graph:
    """Nodes of a file by their names, outputs and inputs."""

    def __init__(self, graph: Any) -> None:
        self.nodes: list[Any] = list(graph.node)
        self._by_name = {node.name: node for node in self.nodes}
        self._makers = {tensor: node for node in self.nodes for tensor in node.output if tensor}
        self._takers: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for tensor in node.input:
                self._takers[tensor].append(node)
        self._constant = {each.name: True for each in graph.initializer}

    def origin(self, made: Any) -> Any:
        """Return the file's node with the same name or output as a runtime's node, or None."""
        if node := self._by_name.get(made.name.partition("/")[0]):
            return node
        return next(
            (self._makers[each] for each in (*made.output, made.name.removesuffix(_BLOCKED)) if each in self._makers), None
        )

    def is_weighted(self, node: Any) -> bool:
        """Return whether a node is an operation with weights."""
        return node.op_type in WEIGHTED and len(node.input) > 1 and self._is_constant(node.input[1])

    def weighted_before(self, node: Any, stops: Collection[str]) -> Any:
        """Return the nearest operation with weights upstream of the node, or None.

        Args:
            stops: tensors at which the search ends.
        """
        seen, waiting = {node.name}, deque([node])
        while waiting:
            each = waiting.popleft()
            if self.is_weighted(each):
                return each
            for tensor in each.input if each.op_type not in WEIGHTED else ():
                maker = self._makers.get(tensor)
                if tensor not in stops and maker is not None and maker.name not in seen:
                    seen.add(maker.name)
                    waiting.append(maker)
        return None

    def after(self, node: Any) -> list[Any]:
        """Return the consumers of the node's outputs."""
        return [each for tensor in node.output for each in self._takers[tensor]]

    def before(self, node: Any) -> list[Any]:
        """Return the producers of the node's inputs."""
        return [self._makers[tensor] for tensor in node.input if tensor in self._makers]

    def path(self, node: Any) -> str:
        """Return the path of the node's module. A convolution fused with its norm by the exporter is named by its weight."""
        if node.op_type == "Conv" and node.input[1].endswith(".weight"):
            return str(node.input[1].removesuffix(".weight"))
        scopes = next((each.value for each in node.metadata_props if each.key == SCOPES), "")
        names = ast.literal_eval(scopes) if scopes else []
        return str(names[-2]) if len(names) > 1 else OTHER

    def _is_constant(self, tensor: str) -> bool:
        if tensor not in self._constant:
            maker = self._makers.get(tensor)
            self._constant[tensor] = maker is not None and all(map(self._is_constant, filter(None, maker.input)))
        return self._constant[tensor]
