"""Every injected fault, so many times: whether a rank hung, when the last had ended or gone on, and what it said.

    python benchmarks/faults.py --runs 20 --out RESULTS/faults.csv

RESULTS is benchmarks/results. The faults are those of tests/fault_driver.py. A row is a fault: ``slowest_s`` is from when the
fault can be noticed (a silence only when the time for an answer, 3 s here, is up) to the last rank's end or next epoch.
``failed`` counts runs in which anything was not as it should be; the first of them is printed.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
from pathlib import Path

from rows import append

COLUMNS = ("fault", "runs", "hung", "failed", "slowest_s", "line")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def main() -> None:
    """Inject and add rows."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and so would its ranks
    import fault_driver

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--fault", nargs="+", choices=[*fault_driver.FAULTS], default=[*fault_driver.FAULTS])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    failures = 0
    for name in options.fault:
        if lacking := fault_driver.missing(name):
            print(f"{name}: left out, {lacking}")
            continue
        outcomes = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(fault_driver.run(name, Path(folder) / "job"))
        failed = [outcome for outcome in outcomes if outcome.problems or outcome.hung or not outcome.line]
        slowest, hung = max(outcome.seconds for outcome in outcomes), sum(outcome.hung for outcome in outcomes)
        line = re.sub(r"/\S+/", "", re.sub(r" \(\[.*", "", outcomes[0].line))  # without paths, and gloo's own words
        row = {"fault": name, "runs": len(outcomes), "hung": hung, "failed": len(failed)}
        append(options.out, COLUMNS, {**row, "slowest_s": f"{slowest:.2f}", "line": line})
        print(f"{name:<26}{len(outcomes)} runs  {hung} hung  {len(failed)} failed  slowest {slowest:.1f} s  {line}", flush=True)
        for outcome in failed[:1]:
            print(f"    {outcome.problems}")
        failures += len(failed)
    if failures:
        sys.exit(f"{failures} runs did not end as they should")


if __name__ == "__main__":
    main()
