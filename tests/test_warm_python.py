"""The stand-in for ``python``: arguments, files, environment, exit codes and signals as of the true one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm_python


def run(*arguments: str, **how: object) -> subprocess.CompletedProcess[str]:
    command = [warm_python.executable(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, **how)  # type: ignore[call-overload]


def test_arguments_directory_environment_and_input(tmp_path: Path) -> None:
    seen = "sys.argv, os.getcwd(), dict(os.environ), sys.stdin.read(), sys.executable, os.getppid()"
    code = f"import json, os, sys; print(json.dumps([{seen}]))"
    done = run("-c", code, "a b", "", cwd=tmp_path, env={"X": "ü"}, input="typed")
    argv, cwd, env, typed, executable, parent = json.loads(done.stdout)
    assert (argv, cwd, typed) == (["-c", "a b", ""], str(tmp_path), "typed") and env["X"] == "ü"
    assert set(env) <= {"X", "PWD", "LC_CTYPE", "_", "SHLVL", "OLDPWD"} and executable == warm_python.executable()
    assert parent == os.getpid()


def test_torch_is_there_and_modules_and_scripts_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, beside; print('torch' in sys.modules, __name__, sys.argv[1:], beside.X)")
    (tmp_path / "beside.py").write_text("X = 3")
    assert run(str(script), "1").stdout == "True __main__ ['1'] 3\n"
    assert run("-m", "paceline", "--version").stdout == subprocess.check_output(
        [sys.executable, "-m", "paceline", "--version"], text=True, env=warm_python.ENVIRONMENT
    )


def test_workers_of_pytest_are_its_programs_and_start_fresh_ones() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("needs workers: pytest -n 1")
    assert Path(sys.orig_argv[1]) == warm_python.SERVER and sys.executable != warm_python.executable()
    fresh = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.check_output(fresh, text=True, timeout=200) == "False\n"


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("raise ValueError('no')", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
        ("import time; print('up', flush=True); time.sleep(1000)", -15),
    ],
)
def test_it_ends_as_its_program_ends(code: str, ends: int) -> None:
    process = subprocess.Popen(
        [warm_python.executable(), "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if ends == -signal.SIGTERM:
        assert process.stdout.readline() == "up\n"
        process.terminate()
    err = process.communicate(timeout=200)[1]
    assert process.returncode == ends
    assert ("no" in err) == (ends == 1)


def test_its_program_ends_with_it_and_files_keep_their_numbers() -> None:
    """The pipe closes only when nobody has it open any more."""
    reading, writing = os.pipe()
    code = f"import os, time; os.write({writing}, b'up'); time.sleep(1000)"
    process = subprocess.Popen([warm_python.executable(), "-c", code], pass_fds=[writing])
    os.close(writing)
    assert os.read(reading, 10) == b"up"
    process.kill()
    assert process.wait(timeout=200) == -signal.SIGKILL and os.read(reading, 10) == b""
    os.close(reading)
