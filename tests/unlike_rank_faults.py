"""A rank that differs from the others: in its options, its model or its Paceline."""

from __future__ import annotations

import shutil
import sys

from distributed import free_port
from fault_jobs import Job
from fault_ranks import TRAINING, WORDS, Rank
from fault_registry import fault
from warm_python import TESTS


@fault("other options")
def options(job: Job) -> None:
    job.happens(20)  # a busy machine starts ranks slowly
    job.start(["--lr", "0.1"], ["--lr", "0.2"])
    job.ends(2, 2)
    for rank in (0, 1):
        job.says("the ranks disagree on lr (rank 0: 0.1; rank 1: 0.2)", rank)


@fault("other code of the model")
def other_model(job: Job) -> None:
    for rank in (0, 1):
        (job.folder / str(rank)).mkdir()
        (job.folder / str(rank) / "my_net.py").write_text(f"from user_module import small  # {rank}\n")
    job.words = ["--model", "my_net:small", *WORDS]
    job.happens(20)  # as above
    job.start()
    job.ends(2, 2)
    job.says("the ranks disagree on code of model (rank 0: ")


@fault("other code of Paceline", long=True)
def other_code(job: Job) -> None:
    copy = job.folder / "src"
    shutil.copytree(TESTS.parent / "src" / "paceline", copy / "paceline", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "paceline" / "units.py").open("a") as file:
        file.write("# another line\n")
    job.happens(20)  # its Python starts anew
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    own = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    words = [*job.words, "--out", str(job.out), "--timeout", "60s"]  # the ranks do not start together
    job.ranks = [Rank([*TRAINING, *words], job.folder / "0", {**shared, **own, "RANK": "0"})]
    start = "import runpy, sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]; "
    start += "runpy.run_module('paceline.training', run_name='__main__', alter_sys=True)"  # it ends as it does for a user
    environment = {**shared, **own, "RANK": "1", "PYTHONPATH": f"{copy}:{TESTS}"}
    job.ranks.append(Rank([sys.executable, "-c", start, *words], job.folder / "1", environment))  # a Python of its own
    job.ends(2, 2, limit_s=100)
    job.says("the ranks disagree on code (rank 0: paceline ")
