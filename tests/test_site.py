"""The site has every page and every public name; the repository's own files say the same version and pin what they run."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import paceline

ROOT = Path(__file__).parents[1]
HOOKS = runpy.run_path(str(ROOT / "docs/site_hooks.py"))


class Loader(yaml.SafeLoader):
    """Reads a configuration of MkDocs, in which tags name Python functions."""


Loader.add_multi_constructor("", lambda *_: None)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}


def leaves(nav: Any) -> Iterator[str]:
    """Paths that a navigation lists."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def test_the_navigation_lists_every_page_once() -> None:
    docs = ROOT / "docs"
    pages = {"index.md", *HOOKS["elsewhere"](), *(str(path.relative_to(docs)) for path in docs.rglob("*.md"))}
    listed = list(leaves(CONFIG["nav"]))
    assert len(listed) == len(set(listed)) and set(listed) == pages


def test_the_reference_has_every_public_name_once() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))
    assert sorted(re.findall(r"^::: paceline\.(\w+)$", text, re.MULTILINE)) == sorted(paceline.__all__)


def test_links_lead_to_paths_of_the_site() -> None:
    text = "[a](../src/paceline/record.py) [b](docs) [c](docs/tour.md#x) ![d](docs/pictures/serve.png) [e](https://f) [g](#h)"
    lead = HOOKS["relative_to_page"]
    assert lead("README.md", text) == text.replace("[b](docs)", "b").replace("docs/", "").replace("[b]", "b")
    assert lead("docs/tour.md", "[a](../src/paceline/record.py)") == "[a](src/paceline/record.py)"
    assert lead("validation/edge/README.md", "[a](../../docs/slim.md)") == "[a](../../slim.md)"
    assert HOOKS["targets"]("docs/tour.md", "[a](../src/paceline/record.py#L1) [b](../src) [c](questions.md)") == {
        "src/paceline/record.py",
        "docs/questions.md",
    }


def test_each_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == citation["version"] == paceline.__version__
    assert f"`v{paceline.__version__}`" in (ROOT / "docs/releases.md").read_text()
    assert f"[{paceline.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    """Steps of all jobs of a workflow."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_to_commits(name: str) -> None:
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    used = [step["uses"] for step in steps(WORKFLOWS[name]) if "uses" in step]
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    assert len(re.findall(r"@[0-9a-f]{40} # v[\d.]+$", text, re.MULTILINE)) == len(used)


def test_pull_requests_run_what_a_contributor_runs() -> None:
    tests = WORKFLOWS["pull_request"]["jobs"]["tests"]
    assert tests["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {"run": ".ci/run"} in tests["steps"]
    assert {"run": "make docs"} in WORKFLOWS["pull_request"]["jobs"]["site"]["steps"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_an_issue_template_is_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem != "config":
        assert {"name", "description", "body"} <= form.keys()
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
