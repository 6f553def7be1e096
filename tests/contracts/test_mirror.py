"""``tests/`` mirrors ``src/``: ``prediction/step/test_memory.py`` tests ``prediction/step/memory.py``."""

from __future__ import annotations

from pathlib import Path

import paceline

SRC, TESTS = Path(paceline.__file__).parent, Path(__file__).parents[1]
FAMILIES = {
    **dict.fromkeys(("models", "models/vision", "models/sequences", "models/speech"), "workload/test_table.py"),
    "validation/sets": "validation/test_sets.py",
    "validation/sets/published": "validation/test_published.py",
    "codecs/reference": "codecs/test_container.py",
    "codecs/triton": "codecs/test_triton.py",
    "nic/engine": "nic/test_engine.py",
    "planning/emit": "planning/test_emit.py",
    "planning/emit/clouds": "planning/test_emit_launchers.py",
    "planning/emit/networks": "planning/test_emit.py",
    "scheduling/traces/logs": "scheduling/traces/test_logs.py",
    "questions/readers": "questions/test_from_files.py",
    "strategy/exchanges": "strategy/test_exchanges.py",
    "training/exchanges": "training/exchanges/test_exchange_group.py",
}
"""Folders of like files, and the file that tests all of them by the same cases."""
ELSEWHERE = {
    "cli/commands/hardware": "reporting/text/test_catalogue_text.py",
    "cli/arguments/training_arguments": "cli/test_worker.py",
    "cli/commands/validate": "validation/test_validate.py",
    "strategy/choices/strategy_choices": "strategy/test_strategy.py",
    "lab/kernel": "lab/test_lab.py",
    "lab/namespaces": "lab/test_lab.py",
    "lab/status": "cli/test_lab.py",
    "reporting/text/asynchronous_text": "cli/test_asynchronous.py",
    "reporting/text/planning_text": "cli/test_planning_commands.py",
    "reporting/text/validation_text": "validation/test_validate.py",
    "training/optimizers/gpu": "training/optimizers/triton_cases.py",
}
"""Modules without a file of their own, and the file that tests them through what uses them. Only fewer may follow."""


MODULES = 20
"""Modules that a newcomer can take in at a glance: more of them are chapters."""


def has_tests(module: Path) -> bool:
    """Whether a file of its name is in the folder of its package or in the one above."""
    names = [path.stem for folder in (module.parent, module.parent.parent) for path in (TESTS / folder).glob("test_*.py")]
    return any(name == f"test_{module.stem}" or name.startswith(f"test_{module.stem}_") for name in names)


def test_every_module_has_tests_of_its_name_but_for_those_listed() -> None:
    modules = [path.relative_to(SRC).with_suffix("") for path in SRC.rglob("*.py") if not path.name.startswith("__")]
    assert modules
    without = {str(module) for module in modules if str(module.parent) not in FAMILIES and not has_tests(module)}
    assert without == ELSEWHERE.keys()


def test_the_files_that_test_others_are_there() -> None:
    assert [path for path in {*FAMILIES.values(), *ELSEWHERE.values()} if not (TESTS / path).is_file()] == []
    assert [folder for folder in FAMILIES if not (SRC / folder).is_dir()] == []


def test_no_room_is_crowded() -> None:
    rooms = [path.parent for path in SRC.rglob("__init__.py")]
    modules = {str(room.relative_to(SRC)): sum(not path.name.startswith("__") for path in room.glob("*.py")) for room in rooms}
    assert {room: number for room, number in modules.items() if number > MODULES} == {}
