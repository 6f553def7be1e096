"""Every command of the README, the docs and the examples runs."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import warm_python
from distributed import free_port
from doc_outputs import commands, shown
from paceline import hardware, lab
from paceline.cli import build_parser, main
from paceline.cli.arguments.training_arguments import training_run
from paceline.errors import UserError
from paceline.exit_codes import ExitCode
from paceline.hardware.instances import instances
from paceline.rundir import RunDir
from paceline.strategy.frameworks import FRAMEWORKS
from paceline.strategy.strategy import CHOICES
from paceline.workload.catalogue import names as workload_names
from paceline.workload.hub.kept import kept_models
from page_figures import says

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/compression.md",
    "docs/local-sgd.md",
    "docs/training.md",
    "docs/sharded.md",
    "docs/faults.md",
    "docs/lab.md",
    "docs/nic.md",
    "docs/tour.md",
    "docs/planning.md",
    "docs/diagnose.md",
    "docs/first-hour.md",
    "docs/memory.md",
    "docs/emit.md",
    "docs/names.md",
    "docs/own-model.md",
    "docs/files.md",
    "docs/fine-tuning.md",
    "docs/add-a-chip.md",
    "docs/questions.md",
    "docs/scripts.md",
    "docs/scheduling.md",
    "docs/start.md",
    "docs/market.md",
    "docs/domain-adaptation.md",
    "docs/slim.md",
    "docs/compare.md",
)

LONG = ("docs/domain-adaptation.md", "docs/slim.md")
"""Their commands train for a while."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands use, copied, so that runs/ stays out of the working tree."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "validation", "benchmarks", "docs/files"):
        shutil.copytree(ROOT / name, copy / name)
    return copy


OWN_PROCESS = {"train", "slim", "lab", "probe"}
"""Words of commands that start processes or leave something behind: they run as a user runs them."""


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of a page. A ``paceline`` that answers and ends runs in this process, since importing torch takes seconds."""
    words = shlex.split(command)
    if words[0] == "paceline" and not OWN_PROCESS & set(words) and not {"|", "&&", ">"} & set(words):
        out, err = io.StringIO(), io.StringIO()
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            code = main(words[1:])
        done = subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
    else:
        done = run_apart(command, cwd)
    assert done.returncode in (ExitCode.DONE, ExitCode.NO), f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def run_apart(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a shell, with this Python for every program of its environment."""
    python = warm_python.executable()
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])  # for what a command starts by name
    for name, words in {"paceline": " -m paceline", "python": "", "torchrun": " -m torch.distributed.run"}.items():
        command = re.sub(rf"(^|&& ){name} ", rf"\g<1>{python}{words} ", command)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**warm_python.ENVIRONMENT, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.everyday("README.md", "docs/emit.md", "docs/names.md", "docs/add-a-chip.md", others="long")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.full, pytest.mark.timeout(1800)] if page in LONG else []) for page in PAGES]
)
def test_every_command_of_a_page_runs_in_order(page: str, checkout: Path) -> None:
    lines, outputs = commands(page), shown(page)
    assert lines and outputs.keys() <= set(lines)
    for command in lines:
        done = run(command, checkout)
        assert done.stdout
        assert outputs.get(command, done.stdout) == done.stdout
        if page == "docs/compression.md" and command.startswith("paceline train"):
            epochs = ["epoch 3/3"] if "--resume" in command else ["epoch 1/2", "epoch 2/2"]
            are_plain_lines(done.stderr, epochs)


def are_plain_lines(stderr: str, epochs: list[str]) -> None:
    """Where nobody watches, training says a line an epoch."""
    assert re.findall(r"^terngrad.*: (epoch \d/\d)  loss ", stderr, re.MULTILINE) == epochs
    assert re.search(r"^terngrad.*: predicted: ", stderr, re.MULTILINE)
    assert "\x1b" not in stderr and "━" not in stderr and "Traceback" not in stderr


def test_the_guide_to_large_batches_runs_and_names_options_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/large-batch.md").read_text()
    code, command = (
        re.search(r"```python\n(import torch\n.*?)```", text, re.DOTALL),
        re.search(r"`paceline (train --lr .*?)`", text),
    )
    assert code and command
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()) as said:
        exec(compile(code[1], "docs/large-batch.md", "exec"), {})
    for part in ("lars, rate 17 after 782 of 6569 steps, decay of power 2", "momentum, rate 3.2 ", "linear scaling from 0.1"):
        assert part in said.getvalue()
    assert list(RunDir("runs/mine").read(partial=True).trust) == ["run"]
    recipe = training_run(build_parser().parse_args(shlex.split(f"{command[1]} --model lenet5 --data digits"))).recipe(1)
    assert (recipe.lr, recipe.warmup_steps, recipe.power) == (pytest.approx(1.6), 5, 2.0)  # half of ten steps at most


@pytest.mark.everyday("README.md", others="long")
@pytest.mark.parametrize("page", ["README.md", "docs/planning.md", "docs/memory.md", "docs/scheduling.md", "docs/emit.md"])
def test_the_python_of_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that import paceline; the others are pieces of a script."""
    blocks = re.findall(r"```python\n(import paceline\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
        assert capsys.readouterr().out


@pytest.mark.long
def test_the_loop_with_a_1_bit_optimizer_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/compression.md").read_text()
    loop = re.search(r"```python\n(import torch\n.*?OneBitAdam.*?)```", page, re.DOTALL)
    assert loop
    (tmp_path / "loop.py").write_text(loop[1])
    done = run("torchrun --standalone --nproc-per-node 2 loop.py", tmp_path)
    assert done.stdout.splitlines() == ["100 True 0"] * 2
    assert {path.name for path in tmp_path.glob("*.pt")} == {"rank0.pt", "rank1.pt"}


@pytest.mark.everyday("inceptionn")
@pytest.mark.parametrize("paper", ["terngrad", "inceptionn"])
def test_the_validation_pages_say_what_their_scripts_print(paper: str) -> None:
    """Orderings and median errors, word for word."""
    folder = ROOT / "validation" / paper
    block = re.search(r"```text\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [warm_python.executable(), str(folder / "compare.py")], env=warm_python.ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0 and block
    assert block[1].startswith("Orderings") and "Median error" in block[1] and done.stdout.endswith(block[1])


def test_the_readme_begins_with_an_answer_on_one_screen() -> None:
    answers, text = shown("README.md"), (ROOT / "README.md").read_text()
    (example,) = re.findall(r"A range such as `(.*?)`", text)
    assert f"({example})" in next(iter(answers.values()))
    assert next(iter(answers)).startswith("paceline ask ") and all(answer.count("\n") <= 24 for answer in answers.values())
    assert text.count("\n") <= 150


def test_the_recording_is_the_session_of_its_page() -> None:
    script = runpy.run_path(str(ROOT / "docs/recording.py"))
    written = (ROOT / "docs/first-hour.cast").read_text()
    assert written == script["recording"]((ROOT / "docs/first-hour.md").read_text()), "run python docs/recording.py"
    head, *events = map(json.loads, written.splitlines())
    assert head["version"] == 2 and events == sorted(events, key=lambda event: event[0])
    typed = "".join(text for _, _, text in events)
    assert all(f"$ {command}" in typed for command in commands("docs/first-hour.md"))


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    for words, counted in (
        ("networks by name", len(workload_names())),
        ("kept models of the Hub", len(kept_models())),
        ("devices of NVIDIA", len(hardware.devices())),
        ("instances of clouds", len(instances())),
        (r"\[frameworks\]", len(FRAMEWORKS)),
    ):
        assert re.findall(rf"(\d+) {words}", text) == [str(counted)], words


def test_the_readme_names_options_of_ask() -> None:
    options = re.findall(r"`(--[^`]+)`", (ROOT / "README.md").read_text().partition("| you have |")[2].partition("\n\n")[0])
    assert options
    for option in options:
        build_parser().parse_args(["ask", "llama-3-8b", *shlex.split(option)])


def test_the_page_of_choices_is_what_the_declarations_say() -> None:
    script = runpy.run_path(str(ROOT / "docs/choices_page.py"))
    text = (ROOT / "docs/choices.md").read_text()
    assert text == script["page"](), "run python docs/choices_page.py"
    assert re.findall(r"^### `(\w+)`$", text, re.MULTILINE) == [n for part in script["PARTS"] for n in of_part(part)]


def test_the_page_of_frameworks_is_what_their_data_say() -> None:
    script = runpy.run_path(str(ROOT / "docs/frameworks_page.py"))
    assert (ROOT / "docs/frameworks.md").read_text() == script["page"](), "run python docs/frameworks_page.py"


def test_the_table_of_job_files_is_what_is_read() -> None:
    script = runpy.run_path(str(ROOT / "docs/job_files_page.py"))
    text = (ROOT / "docs/scheduling.md").read_text()
    assert text == script["page"](text), "run python docs/job_files_page.py"


def of_part(part: str) -> list[str]:
    """Names of the choices of one part of a strategy."""
    return [item.name for item in CHOICES.values() if item.part == part]


def test_on_a_package_index_every_link_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs/absolute_links.py"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setitem(script["main"].__globals__, "ROOT", tmp_path)
    script["main"]("https://host/owner/name", "v1")
    targets = re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert targets[0] == "https://host/owner/name/raw/v1/docs/pictures/serve.png"
    assert all(target.startswith("https://") for target in targets) and len(targets) > 20
    addresses = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert addresses["Changelog"] == "https://host/owner/name/blob/v1/CHANGELOG.md"


@pytest.mark.parametrize("page", ["README.md", "docs/serve.md"])
def test_the_pictures_of_a_page_are_small(page: str) -> None:
    text = (ROOT / page).read_text()
    pictures = [(ROOT / page).parent / name for name in re.findall(r"\]\(([^)]*\.png)\)", text)]
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 200_000


def test_the_demo_is_shown_in_both_conditions() -> None:
    pages = {"README.md": "4 emulated hosts with 200Mb/s links", "docs/compression.md": "4 processes on this machine, no links"}
    for page, condition in pages.items():
        (table,) = re.findall(r"```text\n(4 .*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert table.startswith(condition)
        step = re.search(r"step time +(.*? ms) +(.*? ms) +(.*? ms) +(.*? ms)\n", table)
        error = re.search(r"step time error +(\S+) % +(\S+) %", table)
        assert step and error
        for i in (0, 1):  # the table's own arithmetic, so that no figure is copied alone
            predicted, measured = (float(step[2 * i + k].split()[0]) for k in (1, 2))
            assert 100 * (predicted / measured - 1) == pytest.approx(float(error[i + 1]), abs=1)


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]
TEXTS += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "validation").glob("*/README.md"))]


def anchors(page: Path) -> set[str]:
    """What links to headings of a page end in: lower case, hyphens for spaces, no other marks."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_files_and_headings_that_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target
    roots = (page.parent, ROOT, ROOT / "src/paceline", ROOT / "benchmarks")
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|csv|md|pyi|h|cpp))`", text):
        if not name.startswith("runs/") and "CODEC" not in name:
            assert any((root / name).exists() for root in roots), name


def test_the_path_check_sees_what_is_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One, two: `three`\n[x](#one-two-three) `prediction/nowhere.py`")
    assert anchors(page) == {"one-two-three"}
    with pytest.raises(AssertionError, match="nowhere"):
        test_pages_name_files_and_headings_that_exist(page)


def test_the_readme_names_the_makefile_targets() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert named == ["demo", "test"] and set(named) <= set(targets)


def test_the_guide_says_the_predictions_that_it_prints(checkout: Path) -> None:
    assert says((ROOT / "docs/planning.md").read_text(), "dense 1.1 s, terngrad 0.7 s, hierarchical 0.23 s")
    dense, terngrad = (command for command in commands("docs/planning.md") if command.startswith("paceline predict vgg-16"))
    for command, claimed in ((dense, 1.1), (terngrad, 0.7), (f"{terngrad} --exchange hierarchical", 0.23)):
        step = json.loads(run(f"{command} --json", checkout).stdout)["step_time_s"]
        assert step == pytest.approx(claimed, rel=0.15)


@pytest.mark.long
def test_the_demo_leaves_its_files_and_prints_eighty_columns(run_dir: RunDir, checkout: Path) -> None:
    """In the directory of an earlier run, which it replaces."""
    out = run_dir.path
    done = run(f"python examples/01_digits_side_by_side.py --out {out} --workers 2 --link 10Gb/s --epochs 1", checkout)
    table = done.stdout.split("\nopen ")[0]
    assert max(map(len, table.splitlines())) <= 80
    for word in ("dense", "terngrad", "predicted", "measured", "step time", "samples/s", "wire bytes", "compression ratio"):
        assert word in table
    files = {path.name for path in out.iterdir()}
    assert files >= {"prediction.json", "record.jsonl", "predicted.trace.json", "measured.trace.json", "report.html"}
    assert run_dir.read().labels == ["dense", "terngrad"]


def test_two_demos_on_one_machine_have_a_lab_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second joins the first one's lab, and is ended with it."""
    names: list[str] = []

    def up(hosts: int, link: str, name: str) -> None:
        names.append(name)
        raise UserError("no lab here")

    monkeypatch.setattr(lab, "missing", lambda: ())
    monkeypatch.setattr(lab, "up", up)
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    demo = runpy.run_path(str(ROOT / "examples/01_digits_side_by_side.py"))["main"]
    for process in (4711, 4712):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        assert demo() == 2
    assert len(set(names)) == 2


@pytest.mark.long
def test_a_job_over_two_machines(tmp_path: Path) -> None:
    """The guide's torchrun line, both machines being this one, and the files that it writes."""
    out = tmp_path / "out"
    line = re.search(r"torchrun --nnodes 2 .*?\n.*?\n", (ROOT / "docs/compression.md").read_text())
    assert line
    text = line[0].replace("\\\n", " ").replace("HOST:29500", f"localhost:{free_port()}").replace("runs/two-nodes", str(out))
    words = shlex.split(text.replace("--nproc-per-node 2", "--nproc-per-node 1"))[1:]
    agents = [
        subprocess.Popen(
            [warm_python.executable(), "-m", "torch.distributed.run", "--local-addr", "localhost", *words, "--epochs", "1"],
            cwd=tmp_path,
            env=warm_python.ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    errors = [agent.communicate(timeout=200)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    assert [json.loads(line) for error in errors for line in error.splitlines() if line.startswith("{")] == [
        {"out": str(out), "label": "terngrad"}
    ]
    assert {path.name for path in out.iterdir()} == {
        "checkpoint.parts",
        "checkpoint.pt",
        "progress.json",
        "measured.trace.json",
        "predicted.trace.json",
        "prediction.json",
        "record.jsonl",
    }
    contents = RunDir(out).read()
    record, prediction = contents.records["terngrad"], contents.predictions["terngrad"]
    assert record.wire_bytes_per_device == prediction.wire_bytes_per_device > 0
    assert record.strategy == prediction.strategy and record.strategy["world_size"] == 2
    assert record.steps == 22 and len(record.curve) == 1 and record.nonfinite_steps == 0
    assert {e.rank for e in contents.measured["terngrad"]} == {0, 1}
    assert record.histogram["panels"].keys() == {"original", "clipped", "ternary", "averaged"}


def test_the_page_of_names_lists_every_instance() -> None:
    page = (ROOT / "docs/names.md").read_text(encoding="utf-8")
    rows = {tuple(cell.strip(" `") for cell in line.split("|")[1:-1]) for line in page.splitlines() if line.startswith("| ")}
    for entry in hardware.instances():
        assert (entry.provider, entry.name, f"{entry.devices} x {entry.device}", entry.network or "name one") in rows
