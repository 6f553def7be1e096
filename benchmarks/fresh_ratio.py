"""Latency of one ONNX file over another's in a fresh process, without PyTorch, by the processor time of the process.

    python benchmarks/fresh_ratio.py FOLDER

FOLDER has whole.onnx, small.onnx and inputs.npz, or whole.npz and small.npz if their inputs differ. Printed is the median over
turns of the small network's least seconds over the whole one's, which runs before and after. One thread. The time of day would
not do: on a machine with other programs a run of some milliseconds is hardly ever undisturbed, a shorter one often, which makes
small networks look faster than they are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort

TURNS, TURN_S = 41, 0.004


def fresh_ratio(folder: Path) -> float:
    """Ratio of the two files in a folder."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    common = folder / "inputs.npz"
    sessions = {
        name: ort.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
        for name in ("whole", "small")
    }
    given = {name: dict(np.load(common if common.exists() else folder / f"{name}.npz")) for name in sessions}
    runs = {}
    for name, session in sessions.items():
        for _ in range(5):
            session.run(None, given[name])
        start = time.process_time()
        session.run(None, given[name])
        runs[name] = max(3, round(TURN_S / max(time.process_time() - start, 1e-7)))

    def least(name: str) -> float:
        best = float("inf")
        for _ in range(runs[name]):
            start = time.process_time()
            sessions[name].run(None, given[name])
            best = min(best, time.process_time() - start)
        return best

    before, ratios = least("whole"), []
    for _ in range(TURNS):
        small, after = least("small"), least("whole")
        ratios.append(2 * small / (before + after))
        before = after
    return median(ratios)


if __name__ == "__main__":
    print(fresh_ratio(Path(sys.argv[1])))
