"""Exit codes of every command, declared once. The command line returns them; its help and the docs list them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command. ``meaning`` describes it in one sentence."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Return a code with its meaning."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    DONE = 0, "The question is answered, and the answer meets everything that was asked."
    FAILED = 1, "A worker or a job failed. A worker's own code replaces it."
    MISTAKE = 2, "The question could not be answered: a wrong word, value or file. One line says what to write instead."
    NO = (
        3,
        "The answer is no: the job does not fit the memory, or a stated deadline, budget or target is missed. "
        "The answer is printed, or one line names the nearest.",
    )
    TIME_UP = 124, "The time limit of `lab exec --timeout` is over."
    INTERRUPTED = 130, "Ctrl-C ended the command. Another signal gives 128 and its number."


def exit_code_table() -> tuple[tuple[str, str], ...]:
    """Return each code and its meaning, as the docs and the help print them."""
    return tuple((str(int(code)), code.meaning) for code in ExitCode)
