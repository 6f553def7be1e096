"""Commands of shell scripts. Variables that the script sets are filled in, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.questions.readers.shell import UNKNOWN, read_script, words_of


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("N=4\nrun --n $N ${N} '$N' \"$N\" ${M:-8} ${M}", [["run", "--n", "4", "4", "$N", "4", "8", UNKNOWN]]),
        ("A=(--x 1  # one\n  --y 'a b')\nrun ${A[@]} --z", [["run", "--x", "1", "--y", "a b", "--z"]]),
        ('A=(--x 1)\nA+=(--y 2)\nrun "${A[@]}"', [["run", "--x", "1", "--y", "2"]]),
        ("run --a 1 \\\n  --b 2 | tee log && echo done", [["run", "--a", "1", "--b", "2"], ["tee", "log"], ["echo", "done"]]),
        ("G=8; N=2\nW=$((G * N))\nrun $W", [["G=8"], ["N=2"], ["run", UNKNOWN]]),
        ("export G=8\nN=2\nW=$(($G*N))\nrun $W $((W/4)) $((W/0))", [["run", "16", "4", UNKNOWN]]),
        ("H=$(scontrol show hostnames $L | head -n 1)\nrun --h $H:29500", [["run", "--h", f"{UNKNOWN}:29500"]]),
        ("X=1 Y=2 run --x # no", [["X=1", "Y=2", "run", "--x"]]),
        ("run 'open\n --x", [["run", "open\n --x"]]),
        ("N=1\nN=${N:+5}\nrun $N", [["run", "5"]]),
    ],
)
def test_commands(text: str, commands: list[list[str]]) -> None:
    assert read_script(text).commands == commands


def test_documents_directives_and_given_variables() -> None:
    script = read_script(
        '#SBATCH --nodes=2 --gres=gpu:4\nS=3\ncat <<\'EOF\' > conf/ds.json\n{"stage": $S, "n": ${N}}\nEOF\nrun $N\n', {"N": "2"}
    )
    assert script.directives == ["--nodes=2", "--gres=gpu:4"] and script.commands == [["run", "2"]]
    assert script.files == {"conf/ds.json": '{"stage": 3, "n": 2}'}
    assert words_of("--a 1  # b\n--c 'd e'") == ["--a", "1", "--c", "d e"]


def test_nothing_of_a_script_runs(tmp_path: Path) -> None:
    place = str(tmp_path / "made")
    read_script(f"touch {place}\nX=$(touch {place})\nY=`touch {place}`\nZ=$(( __import__('os').system('touch {place}') ))\n")
    assert not Path(place).exists()
