"""What the pages of the documentation show under their commands, and how to write it anew.

PYTHONPATH=src:tests python -m doc_outputs README.md docs/questions.md
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path

from paceline.cli import main

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def parts(block: str) -> list[tuple[str, str]]:
    """Each command of a console block with the text under it."""
    return [
        (command, output) for command, _, output in (part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.M)[1:])
    ]


def commands(page: str) -> list[str]:
    """Lines after ``$`` in the console blocks of a page, in order."""
    return [command for block in BLOCK.findall((ROOT / page).read_text()) for command, _ in parts(block)]


def shown(page: str) -> dict[str, str]:
    """What a page shows under a command, for the commands under which it shows something."""
    every = (part for block in BLOCK.findall((ROOT / page).read_text()) for part in parts(block))
    return {command: output for command, output in every if output.strip()}


def _anew(command: str, output: str) -> str:
    if not output.strip():
        return f"$ {command}\n{output}"
    out = io.StringIO()
    with chdir(ROOT), redirect_stdout(out):
        code = main(shlex.split(command)[1:])
    if not out.getvalue():
        raise SystemExit(f"{command}: exit code {code}")
    return f"$ {command}\n{out.getvalue()}"


def rewrite(page: str) -> None:
    """Run the commands under which a page shows something, and show what they print now, 80 columns wide."""
    path = ROOT / page
    blocks = BLOCK.sub(lambda m: "```console\n" + "".join(_anew(*part) for part in parts(m[1])) + "```", path.read_text())
    path.write_text(blocks, encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    for name in sys.argv[1:]:
        rewrite(name)
