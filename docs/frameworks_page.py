"""Write ``frameworks.md`` from the frameworks' data (``paceline.strategy.frameworks``).

    python docs/frameworks_page.py

A test compares the page with the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.strategy.frameworks import FRAMEWORKS, Framework

PAGE = Path(__file__).with_name("frameworks.md")
HEAD = """# Frameworks

Say which software trains: `--framework` of `predict`, `plan`, `ask`, `explain`, `whatif` and `memory`, and
`Predictor(framework="deepspeed")` in Python.

```console
$ paceline predict llama-3-8b --cluster "8 A100" --sharding zero3 --recompute full --framework deepspeed --brief
$ paceline whatif gpt2-xl --cluster "8 A100" --global-batch 64 --framework deepspeed --change framework=fsdp2
$ paceline plan gpt2-xl --cluster "8 A100" --tokens 1B --framework hf-trainer --emit framework
```

A framework decides what a strategy leaves open: the kernel of attention, the loss, the optimizer's kernels, whether experts are
one grouped product or a loop, and what its host does between kernels. A choice that you name comes first: `--loss chunked`,
`--update foreach`, `--attention eager`, `--compile`. Networks on sequences also take the optimizer, the recomputation and the
offload of the framework's examples if you name none, and the answer says so. `plan` and `ask` take the optimizer alone, since
they search the others. `--why` lists what the framework stands for. `--emit framework` writes the file of its launcher.

Constants are fitted for `ordinary` and `tuned`. Another framework takes those of its level. Seconds of DeepSpeed's hooks are
fitted to published steps (`benchmarks/fit_frameworks.py`). With each source left out, ten of twelve steps are within 45 %
(median 26 %, 54 % without them). No figure of another framework is fitted: their hosts are those of plain PyTorch.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *("\n".join(_lines(framework)) + "\n" for framework in FRAMEWORKS.values())])


def _lines(framework: Framework) -> Iterator[str]:
    """Yield the lines of one framework."""
    yield f"## `{framework}`\n"
    yield f"- Meaning: {framework.title}"
    if framework.aliases:
        yield f"- Also: {', '.join(f'`{alias}`' for alias in framework.aliases)}"
    graphs = ", kernels queued ahead" if framework.graphs else ""
    yield f"- Kernels: as {framework.level} software{graphs}"
    if framework.attention:
        yield f"- Attention: `{framework.attention}`"
    yield f"- Defaults: {', '.join(f'`{name}` {value}' for name, value in framework.defaults.items())}"
    if framework.examples:
        yield f"- As its examples do: {', '.join(f'`{name}` {value}' for name, value in framework.examples.items())}"
    if framework.compiled_defaults:
        yield f"- Defaults compiled: {', '.join(f'`{name}` {value}' for name, value in framework.compiled_defaults.items())}"
    if framework.compiles:
        yield "- It compiles by default"
    yield f"- Experts: {framework.experts}"
    if framework.emits:
        yield f"- `--emit framework`: `{framework.emits}`"
    yield from (f"- {sentence}" for sentence in framework.about)
    yield f"- Sources: {'; '.join(framework.sources)}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
