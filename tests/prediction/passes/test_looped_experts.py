from paceline import Workload
from paceline.prediction.passes.looped_experts import with_looped_experts


def test_each_expert_has_its_own_calls_and_the_work_stays() -> None:
    net, plain = Workload.named("mixtral-8x7b"), Workload.named("gpt2")
    looped = with_looped_experts(net)
    assert with_looped_experts(plain) is plain
    calls, flops = ([sum(getattr(o, of) for x in n.layers for o in x.operations if o.kind == "matmul") for n in (net, looped)]
                    for of in ("calls", "flops"))  # fmt: skip
    grouped = sum(o.calls for layer in net.layers for o in layer.operations if o.kind == "matmul" and o.batch == 8)
    assert flops[0] == flops[1] and calls[1] == calls[0] + 7 * grouped
