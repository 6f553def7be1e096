"""Write the layer tables of timm's most used networks, for those who have neither timm nor torch.

    python benchmarks/timm_tables.py

It writes `src/paceline/workload/zoo/timm.json.xz`. Needs timm and torch.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from paceline.workload.tracing import timm_networks

NAMES = (
    *(f"efficientnet_b{size}" for size in range(8)),
    *(f"tf_efficientnetv2_{size}" for size in "sml"),
    *("mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv3_large_100", "mnasnet_100"),
    *(f"convnext_{size}" for size in ("tiny", "small", "base", "large")),
    *(f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")),
    *(f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")),
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    *("wide_resnet50_2", "wide_resnet101_2", "resnext50_32x4d", "resnext101_32x8d", "resnet50d", "seresnet50"),
    *(f"regnet{kind}_{size}" for kind in "xy" for size in ("002", "004", "008", "016", "032", "080", "160")),
    *(f"vgg{layers}{norm}" for layers in (11, 13, 16, 19) for norm in ("", "_bn")),
    *("xception", "inception_v4", "repvgg_a2", "vit_tiny_patch16_224"),
)
WRITTEN = Path(timm_networks.__file__).parents[1] / "zoo" / "timm.json.xz"


def main() -> None:
    """Trace all and write the file."""
    tables = {name: timm_networks.traced(name, None, True).to_json() for name in NAMES}
    text = json.dumps(tables, separators=(",", ":")).encode()
    WRITTEN.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(tables)} networks, {WRITTEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
