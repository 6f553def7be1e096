"""Scripts of ``paceline completion`` in the shells themselves, where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from command import answer, run
from paceline.cli.guide.completion import SHELLS, legal_values, script
from paceline.hardware import device, devices, instance, instances, network

CASES = {
    "paceline pre": ["predict"],
    "paceline predict --prec": ["--precision"],
    "paceline predict x --precision mx": ["mxfp8"],
    "paceline plan x --sharding zero": ["zero1", "zero2", "zero3"],
    "paceline predict llama-3-8": ["llama-3-8b"],
    "paceline ask x --on H100-S": ["H100-SXM"],
    "paceline schedule comp": ["compare"],
    "paceline plan x --emit sb": ["sbatch"],
    "paceline completion f": ["fish"],
}
"""Typed lines, and the words that a Tab offers."""
BASH = """
source {file}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_paceline; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


ZSH = """PS1=; autoload -U compinit; compinit -D -u; eval "$(<{file})"
after() {{ zle -I; print -r -- "<""<$BUFFER>>"; BUFFER=; }}; zle -N after; bindkey "^T" after
"""
"""First lines of an interactive zsh. Ctrl-T prints the line and empties it."""


@pytest.fixture(scope="module", params=["bash", *(pytest.param(name, marks=pytest.mark.long) for name in SHELLS[1:])])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A shell that is installed, and the file of its script."""
    pytest.importorskip("shtab", reason="needs shtab: pip install shtab")
    if shutil.which(request.param) is None:
        pytest.skip(f"needs {request.param}: apt-get install {request.param}")
    file = tmp_path_factory.mktemp("completion") / f"paceline.{request.param}"
    file.write_text(script(request.param))
    return request.param, file


def said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def typed_in_zsh(file: Path) -> list[str]:
    """The line after a Tab for each case of one word, in an interactive zsh: its completion needs a terminal."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(["zsh", "-f", "-i"], stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True)
    os.close(its_end)
    os.write(terminal, ZSH.format(file=file).encode())
    lines, seen = [], ""
    for typed in (typed for typed, words in CASES.items() if len(words) == 1):
        os.write(terminal, f"{typed}\t\x14".encode())
        while not (found := re.search("<<(.*?)>>", seen)):
            assert select.select([terminal], [], [], 150)[0], seen
            seen += os.read(terminal, 65536).decode(errors="replace")
        lines.append(found[1].strip())
        seen = seen[found.end() :]
    os.close(terminal)
    process.wait(150)
    return lines


def test_a_tab_offers_the_words(shell: tuple[str, Path]) -> None:
    name, file = shell
    if name == "zsh":
        expected = [f"{typed.rpartition(' ')[0]} {words[0]}" for typed, words in CASES.items() if len(words) == 1]
        assert typed_in_zsh(file) == expected
        return
    if name == "bash":
        out = said("bash", "-c", "".join(BASH.format(file=file, words=typed) + "echo .\n" for typed in CASES))
    else:
        tabs = "".join(f"complete -C '{typed}'\necho .\n" for typed in CASES)
        out = said("fish", "--no-config", "-c", f"source {file}\n{tabs}")
    offered = [[line.partition("\t")[0] for line in part.split("\n") if line] for part in f"\n{out}".split("\n.\n")[:-1]]
    assert [sorted(words) for words in offered] == [sorted(words) for words in CASES.values()]


def test_every_offered_name_is_understood() -> None:
    values = legal_values()
    assert {each.name for each in (*devices(), *instances())} == set(values["cluster"])
    for each in devices():
        assert device(each.name.replace(" ", "-")) == each
    for rented in instances():
        assert instance(rented.name.replace(" ", "-")) == rented
    assert all(network(name.replace(" ", "-")).name for name in values["network"])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs shtab: pip install shtab")
    assert answer(capsys, "completion bash")["script"].startswith("# AUTOMATICALLY GENERATED")
    code, out, err = run(capsys, "completion csh")
    assert (code, out) == (2, "") and "legal: bash, zsh, fish" in err
