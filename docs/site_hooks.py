"""Add to the site of ``docs`` other pages of the repository, and the files that pages link to.

README.md is the first page. A link to another file of the repository leads to a copy of it in the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import File, Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^]]|\](?!\())*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
FIRST_PAGE = "README.md"


def elsewhere() -> list[str]:
    """Return the pages outside ``docs``, as paths of the repository."""
    top = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"]
    return [*top, *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("validation/*/README.md"))]


def site_path(path: str) -> str:
    """Path in the site of a file of the repository."""
    return "index.md" if path == FIRST_PAGE else path.removeprefix("docs/")


def targets(path: str, text: str) -> set[str]:
    """Return the files of the repository that a page at ``path`` links to."""
    folder = (ROOT / path).parent
    found = {(folder / match[3]).resolve() for match in LINK.finditer(text)}
    return {str(p.relative_to(ROOT)) for p in found if p.is_file() and p.is_relative_to(ROOT)}


def relative_to_page(path: str, text: str) -> str:
    """Lead the links of a page at ``path`` to files of the site; a link to a folder becomes text."""
    here = PurePosixPath(site_path(path))

    def link(match: re.Match[str]) -> str:
        picture, label, target, anchor = match.groups()
        file = ((ROOT / path).parent / target).resolve()
        if not file.is_file():
            return match[0] if not file.is_dir() else label
        up = "../" * (len(here.parts) - 1)
        return f"{picture}[{label}]({up}{site_path(str(file.relative_to(ROOT)))}{anchor or ''})"

    return LINK.sub(link, text)


def on_files(files: Files, config: Any) -> Files:
    """Add pages and linked files."""
    from mkdocs.structure.files import File

    pages = {FIRST_PAGE: "index.md", **{path: path for path in elsewhere()}}
    for path, uri in pages.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for file in list(files.documentation_pages()):
        path = repository_path(file)
        for target in targets(path, (ROOT / path).read_text(encoding="utf-8")):
            if not files.get_file_from_path(site_path(target)):
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def repository_path(file: File) -> str:
    """Path of a page in the repository."""
    return str(Path(file.abs_src_path or "").resolve().relative_to(ROOT))


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Lead the links of a page to paths of the site."""
    return relative_to_page(repository_path(page.file), markdown)
