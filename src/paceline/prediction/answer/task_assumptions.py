"""Assumptions of a step with a task, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.hardware.cluster import Cluster
from paceline.prediction.answer.result import Assumption
from paceline.prediction.tasks.forward_only import is_adapted
from paceline.prediction.tasks.generation import prompt_tokens
from paceline.prediction.tasks.length_step import computed_tokens
from paceline.prediction.tasks.task_step import TaskStep
from paceline.strategy.strategy import Strategy
from paceline.strategy.tasks.task import Preference, Reward
from paceline.units import format_seconds
from paceline.workload.table import Workload


def task_assumptions(workload: Workload, cluster: Cluster, strategy: Strategy, step: TaskStep) -> Iterator[Assumption]:
    """Yield a sentence for each part of the step, with its seconds."""
    listed = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in step.parts.items())
    yield Assumption("parts", f"Task {strategy.task.kind}: {listed}, one after the other.")
    task = strategy.task
    if isinstance(task, Preference):
        yield Assumption(
            "parts",
            "A sample is a pair: the chosen and the rejected sequence run in one batch, each as long as a sequence here.",
            "TRL, dpo_trainer.py",
        )
    if isinstance(task, Reward):
        yield from _generated(workload, cluster, task, step)
    if task.has_reference:
        weights = (
            "is the network without adapters" if is_adapted(workload) else "has its own weights, in 16 bits or fp32 as trained"
        )
        yield Assumption("parts", f"The reference {weights}, and runs forward alone.", "TRL")
    elif isinstance(task, Preference):
        yield Assumption("parts", "Log-probabilities of the reference were computed before.", "TRL, precompute_ref_log_probs")


def _generated(workload: Workload, cluster: Cluster, task: Reward, step: TaskStep) -> Iterator[Assumption]:
    made = step.before.generated
    assert made is not None
    prompt = prompt_tokens(workload, task)
    yield Assumption(
        "parts",
        f"A sample is one completion: {task.completion:,} tokens, all of them generated, after {prompt:,} of its prompt, "
        f"{task.samples} for each prompt. Logits and loss are those of the completions.",
        "TRL, grpo_trainer.py",
    )
    if task.rate:
        yield Assumption("parts", f"Generation at the rate that is given, {task.rate:g} tokens/s a device ({task.engine}).")
        return
    where = {
        "vllm": f"vLLM on the devices that train reserves {task.share:.0%} of their memory",
        "hf": "Transformers generates with the trained weights, and its host launches each kernel",
    }[task.engine]
    yield Assumption(
        "parts",
        f"Generation by the roofline of {cluster.device.name}: a token reads the weights for {made.at_once:,.0f} sequences, "
        f"and their keys and values. {where}.",
        "Pope et al. 2022, arXiv:2211.05102; TRL, grpo_config.py",
    )


def length_assumptions(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    """Yield sentences on samples of different length."""
    lengths = strategy.tokens_per_sample
    if not lengths.vary:
        return
    tokens = computed_tokens(workload, strategy)
    spread = (
        f"Lengths of samples: log-normal, {lengths.mean:g} tokens at the mean, one in a hundred cut at {lengths.longest:,}."
    )
    if lengths.packed:
        text = (
            f"{spread} Packed: {tokens / lengths.mean:.3g} samples share {tokens:,.0f} tokens, and each attends to "
            f"{lengths.mean_square / lengths.mean:,.0f} at the mean. A sample of this answer is a sequence."
        )
        yield Assumption("parts", text, "TRL, packing; FlashAttention, varlen")
        return
    text = (
        f"{spread} Padded to the {lengths.padding}: a step takes the time of {tokens:,.0f} tokens a sample, of which "
        f"{lengths.mean / tokens:.0%} count ({lengths.mean:g} if all were equal, {lengths.longest:,} at most). Memory is "
        "that of the longest."
    )
    yield Assumption("parts", text, "transformers, DataCollatorForLanguageModeling")
