"""One rank of an asynchronous job: a parameter server or a worker over gloo's send and recv. ``async_lab.py`` starts it.

Compute is a sleep that differs from step to step. The gradients are those of ``|w - target|^2 / 2``, with noise of each
worker's own. The messages, the updates and the versions are real. A server has a thread for every worker. It receives the
gradients of its tensors in backward order, applies each as it arrives, and answers with what its parameters then are. Rank 0
prints one JSON line a case.

The first ``servers`` ranks of the specification are servers, the others workers. A case uses the first of each.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from paceline.prediction.asynchronous.profile import assign_servers

TARGET, RATE, NOISE = 1.0, 0.05, 0.01


def server(case: dict[str, Any], spec: dict[str, Any], rank: int) -> dict[str, Any]:
    """Serve until every worker has said that it ends; what was counted in the case's window."""
    sizes = [layer["elements"] for layer in spec["layers"]]
    mine = [i for i, s in enumerate(assign_servers(sizes, case["servers"])) if s == rank]
    weights = {i: torch.zeros(sizes[i]) for i in mine}
    version = dict.fromkeys(mine, 0)
    lock = threading.Lock()
    stale: Counter[int] = Counter()
    updates: list[tuple[int, float]] = []

    def serve(worker: int) -> None:
        read = dict.fromkeys(mine, 0)
        got = {i: torch.empty(sizes[i] + 1) for i in mine}
        while True:
            coming = [(i, dist.irecv(got[i], worker, tag=i)) for i in reversed(mine)]
            with lock:
                answer = [(i, weights[i].clone()) for i in mine]
                read.update(version)
            sent = [dist.isend(tensor, worker, tag=i) for i, tensor in answer]
            for i, request in coming:
                request.wait()
                begin = time.perf_counter()
                with lock:
                    weights[i].add_(got[i][:-1], alpha=-RATE)
                    if case["begin"] <= time.monotonic() < case["end"]:
                        stale[version[i] - read[i]] += 1
                    version[i] += 1
                updates.append((4 * sizes[i], time.perf_counter() - begin))
            for request in sent:
                request.wait()
            if got[mine[-1]][-1]:
                return

    threads = [threading.Thread(target=serve, args=(spec["servers"] + w,)) for w in range(case["workers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    distance = math.fsum(float((w - TARGET).square().sum()) for w in weights.values())
    return {"stale": stale, "updates": updates, "distance": distance}


def worker(case: dict[str, Any], spec: dict[str, Any], rank: int) -> dict[str, Any]:
    """Steps until the case ends: when each began, and the seconds of its layers."""
    layers = spec["layers"]
    own = rank - spec["servers"]
    random = np.random.default_rng([case["seed"], own])
    where = assign_servers([layer["elements"] for layer in layers], case["servers"])
    weights, others = ([torch.empty(layer["elements"]) for layer in layers] for _ in range(2))
    gradients = [torch.zeros(layer["elements"] + 1) for layer in layers]
    noise = [torch.from_numpy(random.normal(-TARGET, NOISE, layer["elements"]).astype(np.float32)) for layer in layers]
    steps: list[float] = []
    computed: list[list[list[float]]] = []
    offset = random.uniform(0, sum(layer["forward_s"] + layer["backward_s"] for layer in layers))
    _sleep_until(case["start"] + offset)  # in step they would share links in a way that no job keeps
    coming = [dist.irecv(weights[i], where[i], tag=i) for i in range(len(layers))]
    ended = False
    while not ended:
        factor = math.exp(random.normal(0.0, spec["spread"]))
        clock, woken, times = 0.0, 0.0, [[0.0] * len(layers), [0.0] * len(layers)]
        for i, layer in enumerate(layers):
            coming[i].wait()
            begin = max(clock, time.monotonic())
            clock = begin + layer["forward_s"] * factor
            begin = max(begin, woken)
            woken = _sleep_until(clock)
            times[0][i] = woken - begin
        steps.append(clock)
        if not (ended := clock > case["end"]):
            coming = [dist.irecv(others[i], where[i], tag=i) for i in range(len(layers))]
        sending = []
        for i in reversed(range(len(layers))):
            clock += layers[i]["backward_s"] * factor
            torch.add(weights[i], noise[i], out=gradients[i][:-1])
            gradients[i][-1] = float(ended)
            begin, woken = woken, _sleep_until(clock)
            times[1][i] = woken - begin
            sending.append(dist.isend(gradients[i], where[i], tag=i))
        weights, others = others, weights
        computed.append(times)
        for request in sending:
            request.wait()
    return {"steps": steps, "computed": computed}


def _sleep_until(moment: float) -> float:
    """Returns when it woke."""
    if (left := moment - time.monotonic()) > 0:
        time.sleep(left)
    return time.monotonic()


def round_trip(rounds: int = 200) -> float:
    """Median seconds of a small message from rank 1 to rank 0 and back."""
    message, times = torch.zeros(1), []
    for _ in range(rounds):
        begin = time.perf_counter()
        if dist.get_rank() == 1:
            dist.send(message, 0)
            dist.recv(message, 0)
        elif dist.get_rank() == 0:
            dist.recv(message, 1)
            dist.send(message, 1)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def main() -> None:
    """Join the others and run every case of the specification file."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trip = round_trip()
    for case in spec["cases"]:
        dist.barrier()
        start = [time.monotonic() + 0.2]
        dist.broadcast_object_list(start)
        case |= {"start": start[0], "begin": start[0] + spec["warm_s"], "end": start[0] + spec["warm_s"] + case["seconds"]}
        before = time.process_time()
        outcome: dict[str, Any] = {}
        if rank < case["servers"]:
            outcome = server(case, spec, rank)
        elif 0 <= rank - spec["servers"] < case["workers"]:
            outcome = worker(case, spec, rank)
        outcome["cpu_s"] = time.process_time() - before
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, outcome)
        if rank == 0:
            print("RESULT " + json.dumps({**case, "round_trip_s": trip, "ranks": everyone}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
