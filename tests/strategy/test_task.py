"""Tasks as values: their texts, their JSON, and what other choices they allow."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.strategy import untrained
from paceline.strategy.tasks.task import DPO, ENGINES, GRPO, SFT, Reward, StepTask


@given(
    st.builds(
        Reward,
        samples=st.integers(1, 64),
        completion=st.integers(1, 9999),
        prompt=st.integers(0, 9999),
        rate=st.sampled_from([1.5, 2000.0]),
        engine=st.sampled_from(ENGINES),
        share=st.sampled_from([0.3, 0.5]),
        reference=st.sampled_from(["model", "none"]),
        old=st.booleans(),
        reward=st.sampled_from([0.0, 2.0, 0.5]),
    )
)
def test_a_name_reads_back(task: Reward) -> None:
    assert StepTask.of(task.name) == task == task.name
    assert hash(StepTask.of(task.name)) == hash(task)


def test_names_leave_defaults_out() -> None:
    assert [task.name for task in (SFT, DPO, GRPO)] == ["sft", "dpo", "grpo"]
    assert StepTask.of(" GRPO: samples = 8, completion=64 ").name == "grpo:completion=64"
    assert pickle.loads(pickle.dumps(StepTask.of("dpo:reference=precomputed"))) == "dpo:reference=precomputed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ppo", "dpo"),
        ("dpo:samples=3", "reference"),
        ("grpo:samples=0", "whole number"),
        ("grpo:share=1", "share=0.3"),
        ("grpo:8", "grpo:samples=8"),
        ("sft:samples=2", "grpo:samples=8"),
        ("dpo:reference=none", "precomputed"),
        ("grpo:reference=precomputed", "reference=none"),
        ("grpo:engine=server", "rate="),
        (3, "sft, dpo, grpo"),
    ],
)
def test_other_texts_are_refused_with_what_is_legal(text: object, says: str) -> None:
    with pytest.raises(UserError) as error:
        StepTask.of(text)
    assert says in str(error.value)


def test_a_strategy_writes_only_a_named_task_and_train_refuses_it() -> None:
    plain = Strategy.of(world_size=8, global_batch_size=64)
    assert "task" not in plain.to_json() and list(untrained(plain)) == []
    named = plain.changed(task="grpo:samples=16")
    assert named.to_json()["task"] == "grpo:samples=16"
    assert Strategy.of(**named.to_json()) == named
    assert "TRL" in str(next(untrained(named)).fix)
    with pytest.raises(UserError, match="local steps"):
        plain.changed(task="dpo", sync_every=4)
