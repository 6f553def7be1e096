"""Training of a language model by a text and by the distribution of a whole one (Hinton et al. 2015, arXiv:1503.02531)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.language.perplexity import logits_of, loss_of, windows

WARMUP = 0.05
"""Share of the steps in which the rate rises; then it falls along a cosine to ``LAST`` of it."""
LAST = 0.1
CLIP = 1.0
"""Largest norm of the gradient."""
DECAY = 0.1
"""Weight decay of AdamW, as usual for language models."""


@dataclass(frozen=True, kw_only=True)
class TextTraining:
    """Settings of a training.

    Attributes:
        steps: optimizer steps. ``batch``: windows of a step. ``window``: tokens of each. ``lr``: peak of AdamW's rate.
        share: weight of the teacher's distribution in the loss; the rest is that of the text.
    """

    steps: int
    batch: int
    window: int
    lr: float
    share: float = 0.0
    seed: int = 0

    def rate(self, step: int) -> float:
        """Return the rate of a step, relative to the peak."""
        warm = max(1, round(WARMUP * self.steps))
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done))


def train_language_model(
    model: nn.Module,
    tokens: Tensor,
    schedule: TextTraining,
    teacher: nn.Module | None = None,
    say: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train a model on a text in place, in random order of its windows, and return the mean loss of the last tenth.

    Products are in bfloat16 if the processor has them. Every epoch begins at another offset of the windows.

    Args:
        teacher: whole network, unchanged. ``say``: called after each step with its number and loss.
    """
    generator = torch.Generator().manual_seed(schedule.seed)
    decayed = [each for each in model.parameters() if each.requires_grad and each.dim() > 1]
    plain = [each for each in model.parameters() if each.requires_grad and each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=schedule.lr, betas=(0.9, 0.95))
    rows, left = windows(tokens, schedule.window), torch.zeros(0, dtype=torch.long)
    losses: list[float] = []
    model.train()
    for step in range(schedule.steps):
        if len(left) < schedule.batch:
            offset = int(torch.randint(schedule.window, (1,), generator=generator))
            rows = windows(tokens[offset:], schedule.window)
            left = torch.randperm(len(rows), generator=generator)
        chosen, left = rows[left[: schedule.batch]], left[schedule.batch :]
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr * schedule.rate(step)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=_has_bfloat16()):
            logits = logits_of(model, chosen[:, :-1])
            loss = loss_of(logits, chosen)
            total = loss
            if teacher is not None and schedule.share:
                with torch.no_grad():
                    wanted = logits_of(teacher, chosen[:, :-1]).float().log_softmax(-1)
                apart = F.kl_div(
                    logits.float().log_softmax(-1).flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean"
                )
                total = schedule.share * apart + (1 - schedule.share) * loss
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
        say(step, losses[-1])
    model.eval()
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else math.nan


def _has_bfloat16() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
