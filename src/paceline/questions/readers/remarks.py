"""Remarks of a file that ``plan --emit`` has written: lines for the user's script, which state what the file itself cannot."""

from __future__ import annotations

import re
import textwrap

from paceline.questions.facts import Reading, StatedFact
from paceline.questions.readers.python_settings import read_statements
from paceline.questions.readers.source import Source

_WRITTEN = "Written by paceline plan --emit"
_JSON_LINE = re.compile(r'"_comment": "[^"]*?\bbefore deepspeed\.initialize: (model\.\w+\(\))')
"""Line of the user's script in the remark of a JSON file."""
_BATCH = re.compile(
    r"^#.*?([\d,]+) samples? a device(?: and micro batch, ([\d,]+) micro batches a step)?: global batch", re.MULTILINE
)


def read_remarks(source: Source) -> Reading:
    """Return what the remarks of an emitted file state; nothing for other files."""
    found = Reading()
    if _WRITTEN not in source.text:
        return found
    lines = [line.removeprefix("#   ") for line in source.text.splitlines() if line.startswith("#   ")]
    for line in lines:
        code = textwrap.dedent(line).partition("  # ")[0]
        if not code.startswith("#"):
            found.add(read_statements(code, source))
    if remark := _JSON_LINE.search(source.text):
        found.add(read_statements(remark[1], source))
    if batch := _BATCH.search(source.text):
        words = batch[0].lstrip("# ")
        found.facts.append(StatedFact("micro_batch_size", int(batch[1].replace(",", "")), source.name, words))
        times = int(batch[2].replace(",", "")) if batch[2] else 1
        found.facts.append(StatedFact("grad_accum_steps", times, source.name, words))
    return found
