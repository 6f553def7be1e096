"""Find sentences that a reader would have to read twice, in docstrings, comments, messages and pages.

    python tests/contracts/plain_language.py                 check every package against its ceiling; ``make lint`` runs this
    python tests/contracts/plain_language.py src/paceline/cli   list the findings of some files or folders
    python tests/contracts/plain_language.py --lower          lower each ceiling to what is found now

A package may have one finding per 1,000 lines. ``plain_language.toml`` grants more to packages that are not rewritten yet.
A ceiling never rises.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_suffix(".toml")
ALLOWED_PER_LINE = 1 / 1000
LONGEST_SENTENCE = 30
"""Words of a sentence on a page."""

NO_SUBJECT = re.compile(
    r"(?:Of|That|Those|Which|Whether|None (?:that|of)|Ones? that|What|Where|(?:To|By|For|With) (?:whom|which)|Beside|As many"
    r"|So many|Else)\b(?!.*\?$)"
)
"""Openings of a sentence without its subject. A question may open so."""

INVERTED = re.compile(
    r"(?:(?:Only|Never)(?: then| there| here)?|Nowhere|So|Such|Then|Thus|(?:Beside|Behind|Before|From|To) (?:it|them)) "
    r"(?:is|are|was|were|stands?|comes?|goes|lies|do|does|can|may)\b"
)
"""Openings with the verb before its subject."""

WORN_WORDS = {
    "again": r"anew",
    "all": r"so many [a-z]+ (?:of|an?)|not so many",
    "equal": r"alike",
    "exists": r"(?:is|are|be) had",
    "next to": r"besides?(?! the point)|besides which",
    "no user, no one": r"nobody",
    "not yet": r"as yet",
    "nowhere: say where not": r"nowhere",
    "instead": r"in (?:its|their) place",
    "its subject": r"none (?:can|is|has|of them)",
    "own": r"of (?:its|their|one's) own",
    "restarts, continues": r"goes on|went on|begins? anew",
    "the fact": r"(?:than|of) which (?:no|none)|knows? nothing|teaches nothing|for its part|be it",
    "the noun": r"what (?:it|they|is|was|are|were) (?:owed|of|had|held|left)|where(?:in|of)|there(?:of|in)|hitherto",
}
"""Plain words, each with the pattern of what it replaces."""
WORN = re.compile(r"\b(?:" + "|".join(WORN_WORDS.values()) + r")\b", re.IGNORECASE)

STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Python 3.12 and newer split an f-string into tokens."""


class Finding(NamedTuple):
    """A sentence with the rule that it breaks."""

    path: Path
    line: int
    rule: str
    sentence: str


def rule_broken(sentence: str, *, page: bool = False) -> str | None:
    """Name of the first rule that a sentence breaks."""
    if NO_SUBJECT.match(sentence):
        return "no subject"
    if INVERTED.match(sentence):
        return "inverted"
    if match := WORN.search(sentence):
        return f"worn word {match[0]!r}"
    if page and len(sentence.split()) > LONGEST_SENTENCE:
        return f"over {LONGEST_SENTENCE} words"
    return None


def page_texts(source: str) -> Iterator[tuple[int, str]]:
    """Lines of prose on a Markdown page: no code, no tables, no formulas."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "|", "$")):
            yield number, line.strip("#*- ")


def code_texts(source: str) -> Iterator[tuple[int, str]]:
    """Comments and strings of at least four words in Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")
        elif token.type in STRINGS:
            text = re.sub(r"^[a-zA-Z]*([\"']{3}|[\"'])|([\"']{3}|[\"'])$", "", token.string)
            if len(text.split()) > 3:
                yield token.start[0], text


def findings(path: Path) -> Iterator[Finding]:
    """Every sentence of a file that breaks a rule."""
    source = path.read_text(encoding="utf-8")
    page = path.suffix == ".md"
    for line, text in page_texts(source) if page else code_texts(source):
        for sentence in re.split(r"(?<=[.;:!?])\s+", " ".join(text.split())):
            if rule := rule_broken(sentence, page=page):
                yield Finding(path, line, rule, sentence)


def files(places: Iterable[Path]) -> list[Path]:
    """Python files and pages among and below the places."""
    return [f for p in places for f in ([p] if p.is_file() else sorted([*p.rglob("*.py"), *p.rglob("*.md")]))]


def packages() -> dict[str, list[Path]]:
    """Files of every package of ``src``, of its root, and of the pages."""
    src = ROOT / "src/paceline"
    places = {f"src/paceline/{p.name}": [p] for p in sorted(src.iterdir()) if (p / "__init__.py").exists()}
    places["src/paceline/*.py"] = sorted(src.glob("*.py"))
    places["docs"] = [ROOT / "docs"]
    places["README.md, CONTRIBUTING.md"] = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return {name: files(paths) for name, paths in places.items()}


def found_and_lines(paths: Iterable[Path]) -> tuple[list[Finding], int]:
    """Findings in files, and the files' number of lines."""
    texts = list(paths)
    return [f for path in texts for f in findings(path)], sum(len(p.read_text(encoding="utf-8").splitlines()) for p in texts)


def allowed(lines: int, ceiling: int = 0) -> int:
    """Number of findings that a package of so long a text may have."""
    return max(ceiling, int(lines * ALLOWED_PER_LINE))


def lowered(ceilings: dict[str, int], counts: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Ceilings that no package exceeds now, without those that need none; ``counts`` has findings and lines."""
    lower = {name: min(ceiling, counts[name][0]) for name, ceiling in ceilings.items() if name in counts}
    return {name: ceiling for name, ceiling in lower.items() if ceiling > allowed(counts[name][1])}


def write_ceilings(ceilings: dict[str, int]) -> None:
    """Write the table that ``tomllib`` reads."""
    head = "# Findings that a package may have until it is rewritten. Lower them with plain_language.py --lower.\n"
    CEILINGS.write_text(head + "".join(f'"{name}" = {n}\n' for name, n in ceilings.items()), encoding="utf-8")


def print_findings(found: Iterable[Finding]) -> None:
    """Print one line a finding."""
    for path, line, rule, sentence in found:
        print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {rule}: {sentence[:150]}")


def main(arguments: list[str]) -> int:
    """Run the check; the exit status is 1 where a package exceeds its ceiling."""
    places = [Path(a).resolve() for a in arguments if a != "--lower"]
    if places:
        found, lines = found_and_lines(files(places))
        print_findings(found)
        print(f"{len(found)} findings in {lines:,} lines")
        return 0
    ceilings: dict[str, int] = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    by_package = {name: found_and_lines(paths) for name, paths in packages().items()}
    if "--lower" in arguments:
        write_ceilings(lowered(ceilings, {name: (len(found), lines) for name, (found, lines) in by_package.items()}))
        return 0
    exceeded = False
    for name, (found, lines) in by_package.items():
        if len(found) > allowed(lines, ceilings.get(name, 0)):
            print_findings(found)
            print(f"{name}: {len(found)} sentences to make plain, {allowed(lines, ceilings.get(name, 0))} allowed")
            exceeded = True
    total, every = (sum(column) for column in zip(*((len(f), n) for f, n in by_package.values()), strict=True))
    print(f"Plain language: {total} findings, {1000 * total / every:.1f} per 1,000 lines")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
