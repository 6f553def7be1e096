"""Lines of a batch that grows."""

from __future__ import annotations

from paceline.planning.search.growing_batch import GrowingBatch, GrowthStage
from paceline.reporting.text.critical_batch_text import growth_blocks
from paceline.reporting.text.screen import Screen
from paceline.strategy import Strategy


def test_stages_are_listed_with_the_option_that_runs_them() -> None:
    stages = tuple(
        GrowthStage(samples, Strategy.of(world_size=2, global_batch_size=batch), 10, 0.5)
        for samples, batch in ((0, 8), (80, 16))
    )
    screen = Screen(title="", answer=tuple(growth_blocks(GrowingBatch(stages, "sqrt", 30))), brief="")
    text = "\n".join(str(line) for line in screen.lines())
    assert "33.3 % fewer" in text and "--batch-growth 16@80" in text and "sqrt" in text
