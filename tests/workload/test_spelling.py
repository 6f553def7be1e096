"""Names of networks as tables and model cards write them."""

from __future__ import annotations

from each_row import each_row
from paceline.workload.catalogue import canonical, names
from paceline.workload.spelling import spellings


@each_row(
    ("text", "name"),
    [
        ("LLAMA3.1_405B", "llama-3-405b"),
        ("Llama3 70B 2-node (LoRA fine-tune)", "llama-3-70b"),
        ("Llama 2 7 B", "llama-2-7b"),
        ("Llama2-7B pre-training", "llama-2-7b"),
        ("Qwen3_30B_a3B (tokendrop)", "qwen-3-30b-a3b"),
        ("DeepSeek V3 671B", "deepseek-v3"),
        ("openbuddy-zephyr-7b-chat", "mistral-7b"),
        ("CodeLlama-13b-Instruct-hf", "llama-2-13b"),
        ("phi-1.5 1.3 B", "phi-1.5"),
        ("HuggingFace GPT-2", "gpt2"),
        ("llama3_8B-megatroncore0.6.0", "llama-3-8b"),
        ("gpt3_6.7B-paddle", "gpt3-6.7b"),
        ("llama1_13B-paddle", "llama-2-13b"),
        ("tacotron2-pytorch", "tacotron2"),
    ],
)
def test_texts_around_a_name(text: str, name: str) -> None:
    assert canonical(text) == name


@each_row("text", ["Llama-3.2-11B-Vision-Instruct", "llama-3-9b", "70B", "a model", "", "pre-training"])
def test_other_networks_stay_unknown(text: str) -> None:
    assert canonical(text) not in names()


def test_words_of_weights_are_left_out_and_those_of_bits_are_not() -> None:
    assert "Qwen3-4B" in spellings("Qwen/Qwen3-4B-Thinking-2507")
    assert "Qwen3-8B" not in spellings("unsloth/Qwen3-8B-bnb-4bit")
