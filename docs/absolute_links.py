"""Make the README's links absolute and name the project's addresses, for a package index, which has only the README.

    python docs/absolute_links.py https://github.com/OWNER/NAME v0.1.0

It changes README.md and pyproject.toml in place. A release does so before it builds (.github/workflows/wheels.yml), since only
there the address is known.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def absolute(text: str, address: str, version: str) -> str:
    """Markdown whose links to files lead to that version of the repository; pictures lead to their bytes."""

    def link(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if target.startswith("#"):
            return match[0]
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/{version}/{target})"

    return re.sub(r"(!?)\[([^]]*)\]\((?!https?:)([^)\s]+)\)", link, text)


def urls(address: str, version: str) -> str:
    """Return the table of ``pyproject.toml`` that a package index shows."""
    pages = {
        "Documentation": f"blob/{version}/docs/planning.md",
        "Changelog": f"blob/{version}/CHANGELOG.md",
        "Issues": "issues",
    }
    lines = [f'Repository = "{address}"', *(f'{name} = "{address}/{page}"' for name, page in pages.items())]
    return "\n[project.urls]\n" + "\n".join(lines) + "\n"


def main(address: str, version: str) -> None:
    """Change both files."""
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), address, version), encoding="utf-8")
    project.write_text(project.read_text(encoding="utf-8") + urls(address, version), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
