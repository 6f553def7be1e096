import pytest

from paceline import Workload, predict


def test_a_cut_loss_computes_the_logits_again_and_writes_none() -> None:
    work = Workload.named("llama-3-8b")
    fused, cut = (predict(work, "1 B200", precision="bf16", global_batch_size=1, loss=loss) for loss in ("in_place", "cut"))
    logits = next(layer for layer in work.layers if layer.is_logits)
    share = logits.flops_forward / sum(layer.flops_forward + layer.flops_backward for layer in work.layers)
    assert cut.exposed["compute"] / fused.exposed["compute"] == pytest.approx(1 + share, rel=0.02)
    assert cut.exposed["memory bandwidth"] < fused.exposed["memory bandwidth"]
