"""Every fault of peers with local steps, so many times: whether one hung, and how long the others took to go on.

    python benchmarks/peer_faults.py --runs 20 --out RESULTS/peer_faults.csv

RESULTS is benchmarks/results. The faults are those of tests/peer_ranks.py: three peers on one machine that exchange
``--compression`` every second step. A row is a fault.
``slowest_s`` is from the first peer's end, which is the fault if it is killed, to the last one's. A peer without a sign of life
for 3 s is lost here. ``failed`` counts runs in which anything was not as it should be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

from rows import append

COLUMNS = ("fault", "compression", "runs", "hung", "failed", "slowest_s")
LIMIT_S = 100.0
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def inject(folder: str) -> None:
    """Run the ranks of one case in this process's children, which need not import anything again."""
    import distributed

    distributed._lead(Path(folder))


def main() -> None:
    """Inject and add rows."""
    import distributed
    import peer_ranks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--fault", nargs="+", choices=[*peer_ranks.CASES], default=[*peer_ranks.CASES])
    parser.add_argument("--compression", nargs="+", default=["dense"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    failures = 0
    for compression in options.compression:
        for name in options.fault:
            hung, slowest, failed = 0, 0.0, list[list[str]]()
            for _ in range(options.runs):
                with tempfile.TemporaryDirectory() as folder:
                    spec = {"file": peer_ranks.__file__, "function": "case", "workers": 3, "let_fail": True, "port": 0}
                    spec["arguments"] = {"name": name, "compression": compression}
                    (Path(folder) / "spec.json").write_text(json.dumps(spec))
                    leader = multiprocessing.get_context("fork").Process(target=inject, args=(folder,))
                    leader.start()
                    leader.join(LIMIT_S)
                    if leader.is_alive():
                        hung += 1
                        leader.kill()
                        continue
                    ends = json.loads((Path(folder) / "ends.json").read_text())
                    said = [(Path(folder) / f"{rank}.log").read_text(errors="replace") for rank in range(3)]
                    first = min(end for _, end in ends)
                    outcomes = [distributed.Outcome(c, e - first, t) for (c, e), t in zip(ends, said, strict=True)]
                    slowest = max(slowest, *(outcome.seconds for outcome in outcomes))
                    if wrong := peer_ranks.problems(name, outcomes):
                        failed.append(wrong)
            row = {"fault": name, "compression": compression, "runs": options.runs, "hung": hung, "failed": len(failed)}
            append(options.out, COLUMNS, {**row, "slowest_s": f"{slowest:.2f}"})
            print(
                f"{name:<16}{compression:<8}{options.runs} runs  {hung} hung  {len(failed)} failed  {slowest:.1f} s", flush=True
            )
            for wrong in failed[:1]:
                print(f"    {wrong}")
            failures += hung + len(failed)
    if failures:
        sys.exit(f"{failures} runs did not end as they should")


if __name__ == "__main__":
    main()
