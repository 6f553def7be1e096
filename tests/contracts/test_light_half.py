"""Half of Paceline works without PyTorch, and the command line answers before anything heavy is imported."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from python_calls import work_of

SRC = Path(paceline.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SRC.parent), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Triton is loaded only where there is a CUDA device, starlette by the command serve, Amaranth by what runs or emits engines.
HEAVY_PACKAGES = (
    "models",
    "training",
    "slimming",
    "edge",
    "integrations",
    "codecs/triton",
    "serve/app",
    "serve/guard",
    "serve/live",
    "nic/engine",
)
LIGHT = sorted(
    {
        ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in SRC.rglob("*.py")
        if not path.relative_to(SRC).as_posix().startswith(HEAVY_PACKAGES) and path.name != "__main__.py"
    }
    | {"paceline.training", "paceline.training.runs.training_run"}
)

BLOCK = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'torch':
            raise ModuleNotFoundError("No module named 'torch'", name='torch')

sys.meta_path.insert(0, NoTorch())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, env=ENVIRONMENT)


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = f"from paceline.cli import main; code = main({list(arguments)!r}); assert 'torch' not in sys.modules; sys.exit(code)"
    return python(BLOCK + run)


def test_light_modules_import_without_torch() -> None:
    done = python(f"{BLOCK}\nfrom importlib import import_module\nfor name in {LIGHT!r}: import_module(name)")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_light_modules_do_not_ask_for_torch() -> None:
    """Not even where it is installed and an import would be caught."""
    code = f"import sys\nfrom importlib import import_module\nfor name in {LIGHT!r}: import_module(name)\n"
    done = python(code + "print([m for m in ('torch', 'sklearn', 'matplotlib', 'jinja2', 'rich') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


COMMANDS = [
    ("predict", "lenet5", "--device", "A100", "--nodes", "4", "--network", "10Gb/s", "--global-batch", "64"),
    ("predict", "lenet5", "--device", "A100", "--network", "10Gb/s", "--global-batch", "64", "--asynchronous"),
    ("plan", "lenet5", "--device", "A100", "--max-nodes", "2", "--network", "10Gb/s", "--global-batch", "64"),
    ("whatif", "lenet5", "--device", "A100", "--global-batch", "64", "--change", "device=H100"),
    ("explain", "lenet5", "--device", "A100", "--nodes", "4", "--network", "10Gb/s", "--global-batch", "64"),
    ("hardware", "list"),
    ("hardware", "show", "H100"),
    ("workload", "list"),
    ("workload", "show", "alexnet"),
]


def test_commands_without_torch() -> None:
    code = f"for words in {COMMANDS!r}: assert main([*words, '--json']) == 0 and 'torch' not in sys.modules, words\n"
    done = python(f"{BLOCK}from paceline.cli import main\n{code}")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(COMMANDS) and all(isinstance(answer, dict) for answer in answers)
    assert done.stderr == ""


def test_only_the_command_that_is_asked_for_is_loaded() -> None:
    code = "import sys; from paceline.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
    code += "print([m for m in sys.modules if m.startswith('paceline.') or m == 'numpy'], file=sys.stderr)"
    for words, loaded, absent in (
        (["--help"], set(), {"planning", "prediction", "training", "hardware", "lab", "validation", "numpy"}),
        (["lab", "status", "--help"], {"lab"}, {"planning", "prediction", "training", "validation", "numpy"}),
        (["predict", "--help"], {"strategy"}, {"training", "lab", "validation"}),
    ):
        done = python(code.format(words=words))
        assert done.returncode == 0, done.stderr
        packages = {name.removeprefix("paceline.").partition(".")[0] for name in ast.literal_eval(done.stderr)}
        assert loaded <= packages and not absent & packages, words


def test_a_command_that_needs_torch_says_so() -> None:
    done = without_torch("train", "--model", "lenet5", "--data", "digits")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "paceline: this needs torch; pip install 'paceline[train]'\n"


@pytest.mark.long
def test_help_and_predict_are_quick() -> None:
    """In calls of importing NumPy: help makes less, a prediction at most six times as many. Importing torch makes nine."""
    main = "from paceline.cli import main; import sys; sys.exit(main({!r}))"
    predict = ["predict", "lenet5", "--device", "A100", "--global-batch", "64"]
    programs = (main.format(["--help"]), main.format(predict), "import numpy")
    helped, predicted, numpy = (work_of(program, environment=ENVIRONMENT).calls for program in programs)
    assert helped < numpy and predicted < 6 * numpy


PLAIN_INSTALL = """
import sys

for name in ("torch", "scipy", "matplotlib", "sklearn"):
    sys.modules[name] = None
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "ask bert-large --on '8 A100'",
        "plan bert-large --cluster '4 A100'",
        "memory gpt2-xl --cluster '8 A100'",
        "completion bash",
    ],
)
def test_the_plain_install_answers(command: str) -> None:
    done = python(f"{PLAIN_INSTALL}import shlex\nfrom paceline.cli import main\nsys.exit(main(shlex.split({command!r})))")
    assert done.returncode == 0 and "needs" not in done.stderr, done.stderr
