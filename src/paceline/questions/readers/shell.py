"""Commands of a shell script, with its variables filled in where the script sets them. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Value of a variable that the script does not set, or of what a command would print."""
_ASSIGNED = re.compile(r"^\s*(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:\{(?P<braced>[A-Za-z_]\w*|\d+|[@*#])(?P<index>\[[@*]\])?(?::?(?P<act>[-=+?])(?P<text>[^}]*))?\}|(?P<plain>[A-Za-z_]\w*|\d))"
)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_INTO = re.compile(r"(?<![<>0-9])>\s*(\"[^\"]+\"|'[^']+'|[^\s<>|;&]+)")
_SEPARATORS = frozenset((";", "&&", "||", "|", "&", ";;", "|&"))
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_LONGEST = 20_000


@dataclass(slots=True)
class Script:
    """A shell script as read.

    Attributes:
        directives: options of ``#SBATCH`` lines.
        commands: words of each command, without assignments.
        files: texts that it writes by ``cat << EOF > FILE``, by their names.
        variables: values at the end of the script.
    """

    directives: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def read_script(text: str, given: Mapping[str, str] | None = None) -> Script:
    """Read a script.

    Args:
        given: variables that the scheduler sets.
    """
    script = Script(variables=dict(given or {}))
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("#SBATCH"):
            script.directives += _split(_uncommented(line.removeprefix("#SBATCH")))
            continue
        statement = _whole(line, lines)
        if here := _HEREDOC.search(statement):
            body = "\n".join(_until(here[2], lines))
            if into := _INTO.search(statement):
                script.files[_plain(_filled(into[1], script.variables))] = _filled(body, script.variables, quoted=True)
            continue
        _read(statement, script)
    return script


def words_of(text: str) -> list[str]:
    """Return the words of all lines, without comments and without a meaning as commands."""
    return [word for line in text.splitlines() for word in _split(_uncommented(line))]


def _whole(line: str, lines: Iterator[str]) -> str:
    """Return a statement with the lines that continue it: after a backslash, within quotes or an array."""
    statement = _uncommented(line)
    while len(statement) < _LONGEST:
        if statement.rstrip().endswith("\\"):
            more = next(lines, None)
            statement = statement.rstrip()[:-1] + " " + _uncommented(more or "")
            if more is None:
                break
        elif _open(statement):
            more = next(lines, None)
            if more is None:
                break
            statement += "\n" + _uncommented(more)
        else:
            break
    return statement


def _uncommented(line: str) -> str:
    """Return a line without its comment."""
    quote = ""
    for number, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (number == 0 or line[number - 1].isspace()):
            return line[:number].rstrip()
    return line


def _open(statement: str) -> bool:
    """Return whether quotes or an array are open at the end."""
    quote = ""
    for letter in statement:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
    if quote:
        return True
    value = _ASSIGNED.match(statement)
    return bool(value and value[3].lstrip().startswith("(") and value[3].count("(") > value[3].count(")"))


def _until(word: str, lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() == word:
            return
        yield line


def _read(statement: str, script: Script) -> None:
    """Add the variables and the commands of a statement to the script."""
    assigned = _ASSIGNED.match(statement)
    if assigned and _is_value(assigned[3]):
        name, added, value = assigned.groups()
        words = value.strip()
        if words.startswith("(") and words.endswith(")"):
            text = _filled(words[1:-1].replace("\n", " "), script.variables)
        else:
            text = _plain(_filled(words, script.variables))
        before = script.variables.get(name, "") if added else ""
        script.variables[name] = f"{before} {text}".strip() if added else text
        return
    words_now: list[str] = []
    for word in _split(_filled(statement, script.variables), operators=True):
        if word in _SEPARATORS:
            if words_now:
                script.commands.append(words_now)
            words_now = []
        else:
            words_now.append(word)
    if words_now:
        script.commands.append(words_now)


def _is_value(text: str) -> bool:
    """Return whether all of a text after ``NAME=`` is one value, so that no command follows."""
    value = text.strip()
    if value.startswith("("):
        return True
    if "$(" in value or "`" in value:
        return True
    return len(_split(value)) <= 1


def _plain(text: str) -> str:
    """Return a value without its quotes."""
    return " ".join(_split(text))


def _split(text: str, operators: bool = False) -> list[str]:
    """Return the words of a text; those that its quotes leave open end with it."""
    for closing in ("", "'", '"'):
        try:
            lexer = shlex.shlex(text + closing, posix=True, punctuation_chars=";&|" if operators else False)
            lexer.whitespace_split = True
            lexer.commenters = ""
            return list(lexer)
        except ValueError:
            continue
    return text.split()


def _filled(text: str, variables: Mapping[str, str], quoted: bool = False) -> str:
    """Return a text with the values of its variables, outside of single quotes.

    Args:
        quoted: True if single quotes are plain letters, as in a document.
    """
    text = re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", text)  # an array in quotes is still several words
    parts = [text] if quoted else re.split(r"('[^']*')", text)
    return "".join(part if number % 2 else _values(part, variables) for number, part in enumerate(parts))[: _LONGEST * 4]


def _values(text: str, variables: Mapping[str, str]) -> str:
    text = re.sub(r"\$\(\((.*?)\)\)", lambda found: _arithmetic(found[1], variables), text, flags=re.DOTALL)
    text = re.sub(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`", UNKNOWN, text)

    def value(found: re.Match[str]) -> str:
        name = found["braced"] or found["plain"]
        if found["act"] in ("-", "=") and not variables.get(name):
            return _values(found["text"], variables)
        if found["act"] == "+":
            return _values(found["text"], variables) if variables.get(name) else ""
        return variables.get(name, UNKNOWN)

    return _VARIABLE.sub(value, text)


def _arithmetic(text: str, variables: Mapping[str, str]) -> str:
    """Return the value of whole numbers and variables under ``+ - * /``; unknown for others."""
    filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: variables.get(found[1], UNKNOWN), text)
    try:
        return str(_computed(ast.parse(filled.strip(), mode="eval").body))
    except (ValueError, SyntaxError, KeyError, ZeroDivisionError, RecursionError):
        return UNKNOWN


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_computed(node.left), _computed(node.right))
    raise ValueError(ast.dump(node))
