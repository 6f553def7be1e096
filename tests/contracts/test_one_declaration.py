"""A choice is declared once: one field in one file adds it everywhere. So do one entry for a compression, and one class for its
codec."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from copy import copy as copied
from dataclasses import fields
from functools import cache
from inspect import getsource
from pathlib import Path
from textwrap import dedent, indent

import pytest

import paceline
from paceline.planning import Space
from paceline.planning.search.layout_space import LayoutSpace
from paceline.strategy.choices.choice_values import Name, Parsed
from paceline.strategy.strategy import CHOICES, Strategy, untrained

SRC = Path(paceline.__file__).parent
FIELD = """
flux_depth: int = choice(
    0, WholeNumber("layers of flux", 0), "layers of flux (default {default})", metavar="N", example="3", later=True,
    title="flux {value}", label="Flux", plan=Searched(values=(0, 3)),
)
"""
TRAINED = '{}: int = choice(0, WholeNumber("{}", 0), "{}", metavar="N", later=True, train=RUNS{})'
FIELDS = {
    "parallelism": FIELD + TRAINED.format(*["flux_mesh"] * 3, ""),
    "gradient_exchange": TRAINED.format(*["flux_gradient"] * 3, ""),
    "local_steps": TRAINED.format(*["flux_local"] * 3, ""),
    "strategy": TRAINED.format(*["flux_run"] * 3, ", plan=Searched(values=(0, 2)), emit=WRITTEN"),
}
"""Fields of each part of a strategy, by the file that declares it."""
COMPRESSION = """
from dataclasses import replace as _replace
COMPRESSIONS = {**COMPRESSIONS, **{name: _replace(COMPRESSIONS["int8"], name=name) for name in ("fluxed", "uncoded")}}
"""
CODEC = """
from dataclasses import dataclass
from typing import ClassVar
from paceline.codecs.reference.integer import Int8


@dataclass(frozen=True, kw_only=True)
class Fluxed(Int8):
    name: ClassVar[str] = "fluxed"
    code: ClassVar[int] = 99
"""
PROGRAM = """
import json
from pathlib import Path
import numpy as np
import paceline
from paceline.calibration.records import COLUMNS, observations
from paceline import codecs
from paceline.cli.arguments.training_arguments import training_run
from paceline.cli.command_line import build_parser, main, parse
from paceline.planning import Space
from paceline.planning.compare.changes import apply, parse_change
from paceline.planning.compare.strategy_text import describe
from paceline.planning.search.tally import Exclusions
from paceline.planning.search.training_target import TrainingTarget
from paceline.planning.search.candidates import candidates
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.emit.targets import TARGETS, emit
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.reporting.pages.template import filled
from paceline.reporting.values import unusual_choices
from paceline.serve.controls import controls
from paceline.strategy import Strategy
from paceline.strategy.strategy import untrained
from paceline.workload import Workload

commands = {a.dest: a for a in build_parser()._actions}["command"].choices
helps = {name: commands[name].full_help() for name in ("predict", "plan", "train", "whatif", "explain")}
usual = Strategy.of(world_size=2, global_batch_size=8)
fluxed = usual.changed(flux_depth=3, compression="fluxed")
Path("jobs.csv").write_text("workload,device,global_batch,step_s,flux_depth\\nlenet5,A100,8,0.01,3\\n")
cluster = Cluster.named("2 A100")
space = Space(clusters=(cluster,), batches=(8,), compressions=("dense", "fluxed"))
found = [s for _, s in candidates(space, TrainingTarget(), Exclusions())]
code = main("plan lenet5 --cluster".split() + ["2 A100"] + "--samples 1e5 --global-batch 64 --tensor 1 --compression dense "
            "--flux-depth 0 --why-not flux-depth=3 --json".split())
code += main("plan gpt2 --cluster".split() + ["2 A100"] + "--samples 1e5 --global-batch 8 --tensor 2 --flux-depth 3 "
             "--flux-run 2 --json".split())
codec = codecs.get(fluxed.description.codec_name, block=64)
numbers = np.linspace(-1, 1, 100, dtype=np.float32)
again = np.zeros_like(numbers)
payload = codecs.encode(codec, numbers, codecs.key(1, 2, 3))
codecs.decode(payload, again, codecs.SET)
lenet, refusals = Workload.named("lenet5"), {}
for target in TARGETS:
    try:
        refusals[target] = emit(target, usual.changed(flux_depth=3), lenet, cluster)
    except UserError as error:
        refusals[target] = error.message
of_train = "train --model lenet5 --data digits --sync-every 2 --flux-mesh 1 --flux-gradient 2 --flux-local 3 --flux-run 4"
run = training_run(parse(build_parser(), of_train.split())).strategy.to_json()
training_run(parse(build_parser(), "train --model lenet5 --data digits --compression fluxed".split()))
try:
    uncoded = training_run(parse(build_parser(), "train --model lenet5 --data digits --compression uncoded".split())).model
except UserError as error:
    uncoded = error.message
empty = {"chosen": {}, "folded": {}, **dict.fromkeys(("answer", "status", "problem", "wrong", "has_schedule", "has_queue"), "")}
page = {**empty, "controls": controls()}
plans = [exchange_plan(lenet, strategy, cluster.places) for strategy in (usual, usual.changed(flux_depth=3))]
print(json.dumps({
    "run": {name: run[name] for name in ("flux_mesh", "flux_gradient", "flux_local", "flux_run")},
    "uncoded": uncoded,
    "page": filled("serve/page.html.j2", page),
    "codec": [codec.name, payload.nbytes < numbers.nbytes, float(abs(again - numbers).max())],
    "same_plan": plans[0] is plans[1],
    "same_groups": plans[0].partition is plans[1].partition,
    "refusals": refusals,
    "module": paceline.__file__,
    "helps": helps,
    "later": "flux_depth" in usual.to_json(),
    "json": fluxed.to_json(),
    "again": Strategy.of(**json.loads(json.dumps(fluxed.to_json()))) == fluxed,
    "column": "flux_depth" in COLUMNS and observations(["jobs.csv"])[0].strategy.parallelism.flux_depth,
    "tried": sorted({(s.parallelism.flux_depth, s.description.name) for s in found}),
    "named": f"{describe(cluster, fluxed)}; {', '.join(unusual_choices(fluxed.to_json()))}",
    "changed": apply([parse_change("flux-depth+2"), parse_change("compression=fluxed")], cluster, usual, "strong")[1].to_json(),
    "refused": [str(error) for error in untrained(fluxed)],
    "code": code,
}))
"""


FROM_HERE = """
import sys
sys.path.insert(0, ".")
sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]  # of an editable install
"""


IMPORTED = """
from paceline.strategy.choices.choice import RUNS, WRITTEN, Searched, choice
from paceline.strategy.choices.choice_values import WholeNumber"""
"""Imports of the declarations, which a part may lack."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Output of a copy of the package with further fields of each part, and one more compression and its codec in two files."""
    root = tmp_path_factory.mktemp("declared")
    package = root / "paceline"
    package.mkdir()
    for entry in SRC.iterdir():
        if entry.name in ("strategy", "codecs"):
            shutil.copytree(entry, package / entry.name)
        else:
            (package / entry.name).symlink_to(entry)
    (package / "codecs" / "reference" / "fluxed.py").write_text(CODEC, encoding="utf-8")
    for name, declarations in FIELDS.items():
        part = package / "strategy" / f"{name}.py"
        text, method = part.read_text(encoding="utf-8"), "    def __post_init__"
        text = text.replace("\nfrom paceline.errors", IMPORTED + "\nfrom paceline.errors", 1)
        part.write_text(text.replace(method, indent(declarations, "    ") + "\n\n" + method, 1), encoding="utf-8")
    with (package / "strategy" / "compression" / "compressions.py").open("a", encoding="utf-8") as file:
        file.write(COMPRESSION)
    run = [sys.executable, "-c", FROM_HERE + PROGRAM.replace("\\\\n", "\\n")]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan, divided, said = map(json.loads, done.stdout.splitlines())
    assert Path(said["module"]).parent == package
    return {**said, "plan": plan, "divided": divided}


def test_it_has_an_option_and_help(copy: dict[str, dict[str, str]]) -> None:
    for name in ("predict", "plan", "whatif", "explain"):
        assert "--flux-depth N" in copy["helps"][name] and "layers of flux" in copy["helps"][name], name
        assert "fluxed" in copy["helps"][name], name
    assert "--flux-depth" not in copy["helps"]["train"] and "fluxed" in copy["helps"]["train"]


def test_train_has_an_option_for_what_it_runs_of_each_part(copy: dict[str, dict[str, str]]) -> None:
    missing = {
        f"flux-{name}" for name in ("mesh", "gradient", "local", "run") if f"--flux-{name} N" not in copy["helps"]["train"]
    }
    assert not missing
    assert copy["run"] == {"flux_mesh": 1, "flux_gradient": 2, "flux_local": 3, "flux_run": 4}


def test_it_is_in_json_where_it_is_not_the_default(copy: dict[str, dict[str, object]]) -> None:
    assert copy["again"] and not copy["later"]
    assert (copy["json"]["flux_depth"], copy["json"]["compression"]) == (3, "fluxed")


def test_a_table_of_jobs_has_a_column_for_it(copy: dict[str, object]) -> None:
    assert copy["column"] == 3


def test_a_plan_tries_its_values(copy: dict[str, object]) -> None:
    assert copy["tried"] == [[0, "dense"], [0, "fluxed"], [3, "dense"], [3, "fluxed"]]


def test_a_plan_of_a_divided_network_tries_them_too(copy: dict[str, dict[str, list[dict[str, dict[str, int]]]]]) -> None:
    strategies = [row["strategy"] for row in copy["divided"]["ranking"]]
    assert strategies and {(of["flux_depth"], of["flux_run"], of["tensor"]) for of in strategies} == {(3, 2, 2)}


def test_why_not_and_changes_know_it(copy: dict[str, dict[str, object]]) -> None:
    assert copy["code"] == 0 and "flux-depth 3 was not tried; of flux-depth the plan tries 0" in str(copy["plan"])
    assert (copy["changed"]["flux_depth"], copy["changed"]["compression"]) == (2, "fluxed")
    assert str(copy["named"]).count("flux 3") == 2 and "fluxed" in str(copy["named"])


def test_the_page_has_a_control_for_it(copy: dict[str, str]) -> None:
    assert 'name="flux-depth"' in copy["page"] and ">fluxed</option>" in copy["page"]


def test_its_codec_is_found_by_its_class(copy: dict[str, list[object]]) -> None:
    name, shorter, error = copy["codec"]
    assert name == "fluxed" and shorter and 0 < float(str(error)) < 0.02


def test_training_refuses_a_compression_without_a_codec(copy: dict[str, str]) -> None:
    assert copy["uncoded"] == "training cannot run compression uncoded, which has no codec"


def test_strategies_that_differ_in_it_share_no_cached_answer(copy: dict[str, bool]) -> None:
    assert not copy["same_plan"] and not copy["same_groups"]


def test_files_of_other_programs_refuse_it(copy: dict[str, dict[str, str]]) -> None:
    assert copy["refusals"] and all("flux depth 3: it is not written here" in text for text in copy["refusals"].values())


def test_training_refuses_what_it_is_not_said_to_run(copy: dict[str, list[str]]) -> None:
    assert copy["refused"] == ["flux depth 3; leave flux_depth out"]


def other_value(name: str) -> object:
    """A value of a choice that is not its default; None if its example is the default."""
    item = CHOICES[name]
    value = item.values.parse(item.example, item.word) if item.word else None
    legal = item.values.check(value, name) if value is not None else None
    return None if legal == item.default else legal


@cache
def tree(text: str) -> ast.Module:
    """Syntax tree of a file, which several tests read."""
    return ast.parse(text)


def read(node: ast.AST) -> set[str]:
    """Attributes that a piece of code reads."""
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load)}


@cache
def read_by_training() -> frozenset[str]:
    """Attributes that training reads. A declaration that names a choice does not read it."""
    return frozenset().union(*(read(tree(path.read_text(encoding="utf-8"))) for path in (SRC / "training").rglob("*.py")))


def test_only_code_of_training_reads_a_choice_for_it() -> None:
    assert "gather_bits" in read_by_training() and not {"expert_exchange", "mixing", "shard_devices"} & read_by_training()


@pytest.mark.parametrize("name", [name for name in CHOICES if other_value(name) is not None])
def test_every_choice_is_executed_or_refused(name: str) -> None:
    """Training reads the value where it says that it runs it, and refuses it otherwise."""
    item, strategy = CHOICES[name], Strategy.of(world_size=8, global_batch_size=1024)
    owner = copied(getattr(strategy, item.part)) if item.part else strategy
    object.__setattr__(owner, item.field, other_value(name))  # other choices that it needs are left as they are
    if item.part:
        object.__setattr__(strategy, item.part, owner)
    refused = any(error.message for error in untrained(strategy))
    assert refused != item.train.runs(owner)
    if item.train.read_as:
        assert item.field in read(ast.parse(dedent(getsource(getattr(type(owner), item.train.read_as).fget))))
    assert not item.train.runs(owner) or (item.train.read_as or item.field) in read_by_training()


def test_axes_of_a_plan_are_declared() -> None:
    axes = {item.plan.axis for item in CHOICES.values() if item.plan and item.plan.axis}
    of_search = {"divided_shardings", "micro_batches", "micro_batch_sizes", "node_groups"}  # of a search of layouts, or sizes
    of_plan = {"clusters", "offloads", "others", "max_loss"}
    assert {f.name for f in fields(Space)} == axes | of_search | of_plan
    of_layouts = {"context_exchanges", "sequences", "balanced", "common"}
    assert {f.name for f in fields(LayoutSpace)} - axes - of_search == of_layouts
    decided = {item for item in CHOICES.values() if item.plan and item.plan.axis in {f.name for f in fields(LayoutSpace)}}
    assert {item.name for item in decided if not item.of_layout} == {"global_batch_size", "precision", "optimizer"}


DECLARATIONS = {
    f"strategy/{name}.py"
    for name in (
        "parallelism",
        "gradient_exchange",
        "local_steps",
        "updates/weight_update",
        "strategy",
        "choices/strategy_choices",
    )
}
ALLOWED = {
    "calibration/imports/measuring.py": "sizes whose product is the number of devices",
    "calibration/imports/run_measurement.py": "facts that a comparison with a prediction needs",
    "cli/commands/plan.py": "choices of a layout that the command of a deciding run states",
    "cli/arguments/training_arguments.py": "options of a training run, not of a strategy",
    "integrations/transformers.py": "choices that transformers' TrainingArguments state",
    "planning/ask/training_question.py": "parts of the search that ask makes",
    "planning/emit/torchtitan.py": "what torchtitan has of each choice",
    "planning/search/divided_layouts.py": "axes that depend on the cluster and the network",
    "planning/search/layouts.py": "sizes by which divisions are told apart and counted",
    "planning/search/ranking.py": "choices of a job that its layouts share",
    "planning/search/nearest_fit.py": "changes that save memory, and how near each is",
    "planning/search/lighter_jobs.py": "changes of a job that make it lighter",
    "prediction/layouts/layout_bounds.py": "choices that a bound depends on: other layouts share it",
    "planning/search/layout_space.py": "axes of a search of layouts, which another test holds to the declarations",
    "planning/search/space.py": "axes of a plan, which another test holds to the declarations",
    "prediction/layouts/layout_slices.py": "choices that determine the work of one device",
    "slim_record.py": "settings of the training of a slimmed network",
    "strategy/exchanges/allreduce.py": "what the messages of an exchange depend on",
    "strategy/exchanges/exchange.py": "what the messages of an exchange depend on",
    "strategy/sharded_exchange.py": "what the messages of a unit depend on",
    "training/attach/attach_keywords.py": "keywords for type checkers, which a test holds to the declarations",
    "training/runs/loop.py": "a schedule of learning rates, samples and an optimizer",
    "prediction/mesh/divided_layers.py": "dimensions of the mesh that determine the work of one device",
    "prediction/mesh/group_collectives.py": "dimensions of the mesh",
    "prediction/mesh/tensor_parallel.py": "dimensions of the mesh",
    "validation/sets/case_builders.py": "columns of published tables",
    "validation/sets/dgxc.py": "columns of published tables",
    "validation/sets/megatron_bridge.py": "columns of published tables",
    "validation/sets/megatron_bridge_recipes.py": "choices of published recipes",
    "validation/sets/mlperf.py": "columns of published tables",
    "validation/sets/published/__init__.py": "columns of published tables",
    "validation/sets/published/options.py": "columns of published tables",
}
"""Files that list choices, and what the list is of."""
COMPARED = {
    "prediction/exchange/exchange_plan.py": "the part of an exchange that travels in chunks",
    "nic/verify.py": "names of codecs, as the files of golden vectors",
    "planning/diagnose/question.py": "how a framework runs experts",
    "planning/compare/changes.py": "a change of the cluster's network card",
    "prediction/exchange/collective_time.py": "algorithms of NCCL",
    "prediction/passes/computed_layers.py": "how a framework runs experts",
    "lab/status.py": "a name of an emulated host's counters",
    "validation/sets/megatron_table.py": "words of a published table",
    "validation/sets/tf_benchmarks.py": "words of a published table",
    "workload/builders/transformer.py": "a kind of head of a network",
    "hardware/precision.py": "what mixed precision means on a device",
    "prediction/exchange/exchange_seconds.py": "the host as a resource of a step",
    "prediction/passes/compute.py": "the host as a resource of a step",
    "prediction/step/step_model.py": "the host as a resource of a step",
    "prediction/passes/convolutions.py": "the precision of a device's ordinary cores",
    "strategy/usual_precision.py": "the rule of the default precision",
    "strategy/compression/compressions.py": "the default compression, as an object",
    "prediction/answer/exchange_assumptions.py": "kinds of numbers that a switch adds",
    "reporting/text/catalogue_text.py": "an example of a compression's text",
    "training/optimizers/bench.py": "the two optimizers that it measures",
    "training/optimizers/other_libraries.py": "the two optimizers that it measures",
    "validation/sets/lambda_.py": "words of a published table",
    "validation/sets/llmfoundry.py": "words of a published table",
    "validation/sets/megatron_bridge.py": "words of a published table",
    "validation/sets/megatron_bridge_recipes.py": "words of a published table",
    "validation/sets/mlperf.py": "words of a published table",
    "validation/sets/nvidia_dle.py": "words of a published table",
    "validation/sets/pollux_sia.py": "words of a published table",
    "validation/sets/published/frameworks.py": "words of a published table",
    "validation/sets/torchtitan.py": "words of a published table",
}
"""Files that compare with a text that is also a value of a choice, and what it is there."""
OTHER_WORDS = {*CHOICES, "none", "momentum"}
"""Values of choices that are ordinary words elsewhere."""
NAMES = frozenset(
    name
    for item in CHOICES.values()
    for name in (item.name, item.field, item.word, item.dest, item.column, item.plan.axis if item.plan else "")
    if name
)
VALUES = frozenset(
    str(value) for item in CHOICES.values() if isinstance(item.values, Name | Parsed) for value in item.values.names
) - frozenset(OTHER_WORDS)


def texts(nodes: Iterable[ast.expr | None]) -> set[str]:
    """Constant texts among some expressions."""
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


LISTING = (ast.Dict, ast.Tuple, ast.List, ast.Set, ast.ClassDef, ast.FunctionDef, ast.Call)
"""Nodes that may list choices."""


def listed(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lists of three or more choices: their line and the names.

    Counts constants in a literal, attributes of one object in a literal, keywords of a call that copy attributes of their own
    name from one object, fields of a class, and parameters of a function.
    """
    if sum(name in text for name in NAMES) < 3:
        return  # to parse the whole package takes seconds
    for node in ast.walk(tree(text)):
        if not isinstance(node, LISTING):
            continue
        entries: list[ast.expr | None] = list(
            node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else ()
        )
        attributes = [entry for entry in entries if isinstance(entry, ast.Attribute)]
        if isinstance(node, ast.ClassDef):
            entries = [ast.Constant(ast.unparse(each.target)) for each in node.body if isinstance(each, ast.AnnAssign)]
        if isinstance(node, ast.FunctionDef):
            entries = [ast.Constant(each.arg) for each in (*node.args.args, *node.args.kwonlyargs)]
        if isinstance(node, ast.Call):
            attributes = [k.value for k in node.keywords if isinstance(k.value, ast.Attribute) and k.value.attr == k.arg]
        attributes = [attribute for attribute in attributes if attribute.attr in NAMES]
        of_one: dict[str, set[str]] = {"": texts(entries)}
        for attribute in attributes:
            of_one.setdefault(ast.unparse(attribute.value), set()).add(attribute.attr)
        yield from ((node.lineno, sorted(names & NAMES)) for names in of_one.values() if len(names & NAMES) > 2)


def compared(text: str) -> Iterator[tuple[int, str]]:
    """Comparisons with the name of a value of a choice, cases of a match, and entries that are looked up by it."""
    if not any(f'"{value}"' in text or f"'{value}'" in text for value in VALUES):
        return
    for node in ast.walk(tree(text)):
        if not isinstance(node, ast.Compare | ast.MatchValue | ast.Subscript):
            continue
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Subscript):
            keys = ast.Set([key for key in node.value.keys if key]) if isinstance(node.value, ast.Dict) else None
            sides = [node.slice, *([keys] if keys else [])] if keys or ast.unparse(node.value).isupper() else []
        if any(re.search(r"\b(kind|pattern|numbers(_of\(.*\))?)$", ast.unparse(side)) for side in sides):
            continue  # a device's kind, a phase's pattern, the numbers of a network have values of such names
        entries = [e for side in sides for e in (side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side])]
        if texts(entries) & VALUES:
            yield getattr(node, "lineno", 0), ast.unparse(node)


def test_no_other_file_lists_choices() -> None:
    expected = [(1, ["offload", "pipeline", "tensor"])]
    assert [*listed("{'tensor': 1, 'pipeline': 2, 'offload': 3}")] == expected
    assert [*listed("key = (m.tensor, m.pipeline, m.offload)")] == expected
    assert [*listed("Mesh(tensor=m.tensor, pipeline=m.pipeline, offload=m.offload, data=n.data)")] == expected
    assert [*listed("def mesh(tensor, pipeline, *, offload): pass")] == expected
    assert [*listed("class Mesh:\n    tensor: int\n    pipeline: int = 1\n    offload: str = ''")] == expected
    assert not [*listed("Mesh(tensor=a.tensor, pipeline=b.pipeline, offload=c.offload)")]
    assert [*compared("x == 'allreduce' or phase.pattern == 'allreduce'")] == [(1, "x == 'allreduce'")]
    assert [*compared("x in ['adam', y]")] and [*compared("COSTS['fp16']")] and [*compared("{'fp16': 1}[x]")]
    assert [*compared("match x:\n    case 'zero1': pass")]
    files = {path.relative_to(SRC).as_posix(): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    others = {name: text for name, text in files.items() if name not in DECLARATIONS}
    assert {name for name, text in others.items() if any(listed(text))} == set(ALLOWED)
    assert {name for name, text in others.items() if any(compared(text))} == set(COMPARED)
