"""One worker of a run on one machine or several: ``torchrun … -m paceline.training --model … --data …``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from contextlib import ExitStack

from paceline.errors import Interrupted, UserError
from paceline.training.runs.launcher import LAUNCHER, follow_launcher, leave_error


def main(arguments: list[str] | None = None) -> int:
    """Run a worker and return its exit code: 0 done, 1 lost peer or divergence, 2 user's mistake, 128 + n signal n."""
    from paceline.cli.command_line import with_options
    from paceline.cli.worker import worker_options
    from paceline.codecs import PayloadError
    from paceline.errors import LostRank, ReplicasDiverged, TrainingDiverged
    from paceline.training.attach.liveness import tells_of_a_loss
    from paceline.training.runs.stop_requests import StopRequests
    from paceline.training.runs.worker import joined, launched, train

    follow_launcher()
    stops = StopRequests()
    given = sys.argv[1:] if arguments is None else arguments
    rank = os.environ.get("RANK", "0")
    same = True  # until training starts, the ranks have the same error, and the first of each node says it
    try:
        with ExitStack() as held:
            if given[:1] == ["--run"]:
                launched(given[1], stops)
                return 0
            options = worker_options(given)
            if "WORLD_SIZE" not in os.environ:
                instead = "on one machine use paceline train, on several torchrun -m paceline.training"
                raise UserError("torchrun has not started this process", instead)
            run, device = joined(options, held)
            same = False
            train(run, device, stops)
        if rank == "0":
            print(json.dumps({"out": run.out, "label": run.label}), file=sys.stderr)
    except UserError as error:
        if not leave_error(error.message, error.fix, mistake=True) and not (same and os.environ.get("LOCAL_RANK", "0") != "0"):
            print(f"paceline: {'' if same else f'rank {rank}: '}{with_options(str(error))}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        if rank == "0" and LAUNCHER not in os.environ:
            print(f"paceline: {with_options(str(stop))}", file=sys.stderr)
        return stop.code
    except Exception as error:
        what = next((line for line in str(error).splitlines() if line.strip()), "")
        named = isinstance(error, LostRank)
        # of gloo's, outside of an exchange of gradients
        waited = None if named else re.search(r"[Tt]imed out waiting (\d+)ms", what)
        if waited:
            seconds = int(waited[1]) / 1000
            what = f"another rank has not answered for {seconds:g} s: it hangs, or a link is cut; --timeout sets the wait"
        elif not isinstance(error, LostRank | ReplicasDiverged | TrainingDiverged | PayloadError):  # their messages say it all
            what = ": ".join(filter(None, (type(error).__name__, what))) + _place(error)
            sys.stderr.write("".join(traceback.format_exception(error)))  # in one piece: other ranks may write too
        if not leave_error(what, lost=tells_of_a_loss(error)):
            print(f"paceline: rank {rank}: {what}", file=sys.stderr)
        # The second of two interrupts ends a rank at once, and a peer may get it first.
        return 128 + signal.SIGINT if named and stops.number == signal.SIGINT else 1
    return 0


def _place(error: Exception) -> str:
    """Return the place of an error in the user's code, in parentheses; empty if it was raised elsewhere."""
    others = {"paceline", "torch", "__main__", *sys.stdlib_module_names}
    places = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in others
    ]
    return places[-1] if places else ""


if __name__ == "__main__":
    os.dup2(2, 1)  # stdout is for the command line's numbers; what a network of the user's prints is not among them
    # Not sys.exit: a peer may be gone, and the interpreter would wait for its connections.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
