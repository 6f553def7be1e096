"""Objective of a step: supervised (``sft``), preferences (``dpo``), or rewards of generated sequences (``grpo``).

A step of ``dpo`` runs the policy on the chosen and the rejected sequence of each pair, in one batch, and a frozen reference
forward on both (Rafailov et al. 2023, arXiv:2305.18290; TRL, ``dpo_trainer.py``). A step of ``grpo`` generates completions,
runs forward passes of the reference and of the policy before the step on them, waits for rewards, and trains on them (Shao et
al. 2024, arXiv:2402.03300, section 4.1; TRL, ``grpo_trainer.py``). With adapters the reference is the network without them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, ClassVar, final

from paceline.errors import UserError, check_name, shown, unknown
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import EmitRule, Need, Searched, Trained, choice
from paceline.strategy.choices.choice_values import Parsed
from paceline.strategy.choices.values import NamedChoice
from paceline.units import parse_seconds

REFERENCES = ("model", "none", "precomputed")
"""Reference of a task: a frozen network (of an adapted one the network without adapters), none, or log-probabilities computed
before the training (TRL, ``precompute_ref_log_probs``)."""
ENGINES = ("vllm", "hf", "server")
"""Software that generates: vLLM on the devices that train (TRL, ``vllm_mode="colocate"``), transformers' ``generate`` with the
trained weights, or other devices that nothing here pays for."""


@dataclass(frozen=True, eq=False)
class StepTask(NamedChoice, ABC):
    """Objective of a step.

    Attributes:
        kind: first part of the name.
        sequences: sequences of one sample that are trained.
        alone: True if a step is its training alone.
    """

    kind: ClassVar[str]
    alone: ClassVar[bool] = False
    sequences: ClassVar[int] = 1

    @staticmethod
    def of(choice: object) -> StepTask:
        """Return the task of a choice: ``sft``, ``dpo``, ``dpo:reference=precomputed``, ``grpo:samples=8,completion=512``.

        A ``+`` is read as a comma.

        Raises:
            UserError: no such task or part of it.
        """
        if isinstance(choice, StepTask):
            return choice
        if not isinstance(choice, str):
            raise UserError(f"task={shown(choice)}", f"give {', '.join(TASKS)}")
        return _named(choice)

    @cached_property
    def name(self) -> str:
        """The choice as the user writes it, without parts that have their defaults."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self) if getattr(self, each.name) != each.default)
        listed = ",".join(f"{name}={_plain(value)}{'s' if name == 'reward' else ''}" for name, value in given)
        return f"{self.kind}:{listed}" if listed else self.kind

    @property
    def has_reference(self) -> bool:
        """True if a step runs a reference network."""
        return getattr(self, "reference", "none") == "model"

    @property
    def group(self) -> int:
        """Samples of a global batch that belong together."""
        return 1


@final
@dataclass(frozen=True, eq=False)
class Supervised(StepTask):
    """Training on given sequences, or on any other given samples: the default."""

    kind: ClassVar[str] = "sft"
    alone: ClassVar[bool] = True


@final
@dataclass(frozen=True, eq=False)
class Preference(StepTask):
    """Direct preference optimization. A sample is a pair of sequences, as in TRL's batch sizes.

    ``reference``: a name of ``REFERENCES``.
    """

    reference: str = "model"
    kind: ClassVar[str] = "dpo"
    sequences: ClassVar[int] = 2


@final
@dataclass(frozen=True, eq=False)
class Reward(StepTask):
    """Group relative policy optimization. A sample is one completion with its prompt, as in TRL's batch sizes.

    Attributes:
        samples: completions of one prompt, which are compared with each other.
        completion: tokens of each completion. ``prompt``: tokens before them; 0: the rest of the sequence.
        rate: generated tokens a second of one device; 0: by the roofline.
        engine: a name of ``ENGINES``.
        share: of the device's memory that vLLM reserves (TRL, ``vllm_gpu_memory_utilization``).
        reference: a name of ``REFERENCES``; TRL's default is ``none``.
        old: whether the policy's own forward pass before the step is run, as TRL does with vLLM.
        reward: seconds of a step in which the rewards are computed.
    """

    samples: int = 8
    completion: int = 512
    prompt: int = 0
    rate: float = 0.0
    engine: str = "vllm"
    share: float = 0.3
    reference: str = "model"
    old: bool = True
    reward: float = 0.0
    kind: ClassVar[str] = "grpo"

    @property
    def group(self) -> int:
        """Samples of a global batch that belong together."""
        return self.samples


SFT, DPO, GRPO = Supervised(), Preference(), Reward()
TASKS: Mapping[str, StepTask] = {task.kind: task for task in (SFT, DPO, GRPO)}
"""Tasks by the first part of their name."""


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**9:
        raise UserError(f"{name}={shown(text)} of a task", f"give a whole number: {name}=8")
    return int(text)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e12 or (name == "share" and value >= 1):
        raise UserError(f"{name}={shown(text)} of a task", "give share=0.3" if name == "share" else f"give {name}=2000")
    return value


def _flag(text: str, name: str) -> bool:
    check_name(f"{name} of a task", text, ("yes", "no"))
    return text == "yes"


def _one_of(legal: tuple[str, ...]) -> Callable[[str, str], str]:
    def read(text: str, name: str) -> str:
        check_name(f"{name} of a task", text, legal)
        return text

    return read


_READ: Mapping[str, Callable[[str, str], Any]] = {
    "samples": _count,
    "completion": _count,
    "prompt": _count,
    "rate": _number,
    "engine": _one_of(ENGINES),
    "share": _number,
    "reference": _one_of(REFERENCES),
    "old": _flag,
    "reward": lambda text, name: parse_seconds(text, zero=True),
}


@lru_cache(maxsize=256)
def _named(text: str) -> StepTask:
    """Return the task with a name. Raises UserError as ``StepTask.of``."""
    kind, _, listed = text.strip().casefold().partition(":")
    task = TASKS.get(kind)
    if task is None:
        raise unknown("task", text, TASKS)
    legal = [each.name for each in fields(task)]
    given: dict[str, Any] = {}
    for part in filter(None, map(str.strip, listed.replace("+", ",").split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not legal:
            raise UserError(f"task {shown(text)}", "write it as grpo:samples=8,completion=512, or dpo:reference=precomputed")
        check_name(f"part of task {kind}", name, legal)
        given[name] = _READ[name](value, name)
    made = type(task)(**given) if given else task
    if isinstance(made, Reward) and made.reference == "precomputed":
        raise UserError("reference=precomputed for completions to come", "give reference=model or reference=none")
    if isinstance(made, Preference) and made.reference == "none":
        raise UserError("dpo without a reference", "give reference=model, or reference=precomputed")
    if isinstance(made, Reward) and made.engine == "server" and not made.rate:
        raise UserError("generation on a server of unknown speed", "give rate=, generated tokens a second for each device here")
    return made


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


TASK: Any = choice(
    SFT,
    Parsed(StepTask.of, tuple(TASKS)),
    "objective of a step: {legal} (default {default}); dpo:reference=precomputed; grpo:samples=8,completion=512,rate=2000",
    metavar="T",
    example="dpo",
    later=True,
    title="{value}",
    affects=("bytes", "time", "memory", "numerics"),
    strategy_needs=(
        Need(
            lambda strategy: strategy.sync_every == 1,
            "task {value} with local steps",
            "leave sync_every out, or train with task sft",
        ),
    ),
    train=Trained("task {value}", "train it with TRL, or verl; train runs task sft"),
    emit=EmitRule("task {value}", "TRL's own script defines it"),
    plan=Searched(single=True, help="{help}"),
    synonyms=tool_names.TASK,
    source="Rafailov et al. 2023, arXiv:2305.18290; Shao et al. 2024, arXiv:2402.03300; TRL",
)
"""Declaration of the choice."""
