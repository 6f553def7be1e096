"""``torchrun … -m paceline.training --model … --data …``: one worker of a job, on one machine or several."""

from __future__ import annotations

import json
import os
import sys

from paceline.cli.worker import worker_run
from paceline.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a peer was lost or the replicas drifted apart, 2 a user's mistake."""
    from paceline.training.training_run import Job
    from paceline.training.worker import prepare, run

    given = sys.argv[1:] if arguments is None else arguments
    rank = int(os.environ.get("RANK", "0"))
    try:
        if given[:1] == ["--job"]:
            run(Job.from_json(given[1]))
            return 0
        if "WORLD_SIZE" not in os.environ:
            raise UserError(
                "no torchrun around this process", "on one machine: paceline train; else torchrun -m paceline.training"
            )
        job = prepare(worker_run(given, int(os.environ["WORLD_SIZE"])), first=rank == 0)
        run(job)
        if rank == 0:
            print(json.dumps({"out": job.out, "label": job.label}), file=sys.stderr)
    except UserError as error:
        if rank == 0:
            print(f"paceline: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        print(f"paceline: rank {rank}: {first}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.dup2(2, 1)  # stdout is for the command line's numbers; what a network of the user's prints is not among them
    # Not sys.exit: a peer may be gone, and the interpreter would wait for its connections.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
