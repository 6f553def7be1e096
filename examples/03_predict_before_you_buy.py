"""How fast would it be? Four answers about hardware that is not there, and no PyTorch needed.

python examples/03_predict_before_you_buy.py
"""

from __future__ import annotations

import paceline
from paceline.units import format_bytes, format_seconds


def main() -> None:
    """ResNet-50 and VGG-16 on eight V100 nodes, over two networks, dense and with TernGrad."""
    for name in ("resnet-50", "vgg-16"):
        for network in ("10Gb/s", "100Gb/s"):
            for compression in ("dense", "terngrad"):
                p = paceline.predict(name, "8x4 V100", network=network, global_batch_size=1024, compression=compression)
                times = f"{format_seconds(p.step_time_s):>8} ({format_seconds(p.low_s)} to {format_seconds(p.high_s)})"
                sent = format_bytes(p.wire_bytes_per_device)
                print(f"{name:<10}{network:>8}  {compression:<9}{times}  {sent:>8} sent  waits for {p.bottleneck}")


if __name__ == "__main__":
    main()
