"""Structure of the source at one or several commits: how far each choice spreads, names that repeat, crowded rooms.

    python benchmarks/structure.py --commit 4dc469d0 --commit HEAD --out benchmarks/results/structure.csv

Nothing is imported or run: each commit is read from git and parsed. A row has one figure of one commit.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import platform
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
COLUMNS = ("what", "value", "unit", "commit", "date", "python")
CHOICES = ("gather_bits", "virtual_stages", "offload", "dense_bits", "codec_at", "residual_bits")
"""Choices of a strategy whose spread is counted."""
NAMES_OF_CHOICES = frozenset(
    {
        "dense", "allreduce", "sharded", "parameter_server", "ring", "allgather", "hierarchical", "switch",
        "ddp", "zero1", "zero2", "zero3", "distributed_optimizer", "nic", "1f1b", "gpipe", "zero_bubble", "selective",
    }
)  # fmt: skip
"""Values of choices; ``none``, ``full``, ``host`` and ``gpu`` also mean other things and are left out."""
VERBS = ("attach", "attach_local", "train", "schedule")
"""Public functions whose parameters are counted; the definition with the most counts."""
ROOMS = (
    "prediction", "planning", "scheduling", "training", "market", "slimming", "reporting", "workload",
    "strategy", "models", "cli",
)  # fmt: skip

Sources = Mapping[PurePosixPath, str]


def sources(commit: str) -> Sources:
    """Python files of the package at a commit: path below the package to text."""
    done = subprocess.run(["git", "archive", commit, "src/paceline"], cwd=ROOT, capture_output=True, check=True)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file:
                found[PurePosixPath(member.name).relative_to("src/paceline")] = file.read().decode()
    return found


def figures(files: Sources) -> Iterator[tuple[str, int, str]]:
    """Every figure: what it counts, the count and its unit."""
    trees = {path: ast.parse(text) for path, text in files.items()}
    yield "source", sum(len(text.splitlines()) for text in files.values()), "lines"
    yield "source", len(files), "files"
    for choice in CHOICES:
        yield f"files that name {choice}", sum(choice in text for text in files.values()), "files"
    yield "comparisons with the name of a choice", sum(map(comparisons, trees.values())), "comparisons"
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    repeated = {name: count for name, count in classes.items() if count > 1}
    yield "class names that stand for several classes", len(repeated), "names"
    yield "classes that share a name", sum(repeated.values()), "classes"
    public = [name for name in repeated if not name.startswith("_")]
    yield "public class names that stand for several classes", len(public), "names"
    for verb in VERBS:
        yield f"parameters of {verb}", max((parameters(tree, verb) for tree in trees.values()), default=0), "parameters"
    rooms = Counter(path.parent for path in files if path.name != "__init__.py")
    for package in ROOMS:
        sizes = [count for folder, count in rooms.items() if folder.parts[:1] == (package,)]
        yield f"modules in the largest folder of {package}", max(sizes, default=0), "modules"
    yield "functions of more than 60 lines", sum(map(long_functions, trees.values())), "functions"


def comparisons(tree: ast.Module) -> int:
    """Comparisons of something with the name of a choice, by ``==``, ``!=`` or ``in``."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            flat = [
                x for operand in operands for x in (operand.elts if isinstance(operand, ast.Tuple | ast.Set) else [operand])
            ]
            count += any(isinstance(x, ast.Constant) and x.value in NAMES_OF_CHOICES for x in flat)
    return count


def parameters(tree: ast.Module, name: str) -> int:
    """Most parameters of a top-level function of that name."""
    found = [node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return max((len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs) + bool(a.kwarg) for a in found), default=0)


def long_functions(tree: ast.Module) -> int:
    """Functions of more than 60 lines, docstring included."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sum((n.end_lineno or n.lineno) - n.lineno + 1 > 60 for n in functions)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Print a table with a column for each commit, and append its rows to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", action="append", help="may be given several times (default HEAD)")
    parser.add_argument("--out", type=Path, help="CSV file that the rows are appended to")
    o = parser.parse_args()
    commits = [_git("rev-parse", "--short=8", name) for name in o.commit or ["HEAD"]]
    columns = {commit: {(what, unit): value for what, value, unit in figures(sources(commit))} for commit in commits}
    print(f"{'':52}" + "".join(f"{commit:>10}" for commit in commits))
    for key in columns[commits[-1]]:
        print(f"{key[0]:52}" + "".join(f"{columns[commit].get(key, 0):>10,}" for commit in commits) + f"  {key[1]}")
    if o.out:
        fresh = not o.out.exists()
        with o.out.open("a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([COLUMNS] if fresh else [])
            today = datetime.now(UTC).date().isoformat()
            python = platform.python_version()
            writer.writerows(
                [what, value, unit, c, today, python] for c in commits for (what, unit), value in columns[c].items()
            )


if __name__ == "__main__":
    main()
