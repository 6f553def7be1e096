"""Threads end with their owner, and before the interpreter does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from paceline.training.attach import daemon_threads as daemons
from paceline.training.attach.exchange_thread import Background

LAST = """
import atexit, threading
from functools import partial
from paceline.training.attach import daemon_threads
from paceline.training.attach.exchange_thread import Background

daemon_threads.PATIENCE_S = 60
alone, freeing, ending = threading.Event(), threading.Event(), threading.Event()
atexit.register(ending.set)  # before the one of the threads, which was registered earlier

class Group:
    def __del__(self):
        freeing.set()
        ending.wait(30)
        time.sleep(0.5)  # while the interpreter is taken down, if nobody waits for this thread
        print("let go", flush=True)

class Owner:
    def __init__(self):
        self.group = Group()

owner = Owner()
work = Background(owner, "exchange")
work.submit(partial(lambda owner: alone.wait(30), owner))
del owner
alone.set()
assert freeing.wait(30)  # the thread is freeing the owner now
"""


@pytest.mark.long
def test_a_thread_that_is_the_last_to_let_go_of_its_owner_is_waited_for() -> None:
    """As an exchange of a script's last step is; else it frees a process group while the interpreter is taken down: abort."""
    source = str(Path(paceline.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys, time; sys.path.insert(0, {source!r})\n{LAST}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "let go\n"), done.stderr


def test_a_thread_ends_with_its_owner() -> None:
    class Owner:
        pass

    owner, done = Owner(), []
    work = Background(owner, "one")
    work.submit(lambda: done.append(1))
    thread = next(reversed(daemons._started))
    assert thread.name == "one" and thread.is_alive()
    del owner
    thread.join(10)
    assert not thread.is_alive() and done == [1]
    again = Owner()
    Background(again, "two")
    assert thread not in daemons._started, "threads that ended are forgotten"
