"""What lies in the host's memory in place of the device's.

``optimizer``: optimizer state and fp32 master weights; each worker's host updates its part (Ren et al. 2021, ZeRO-Offload,
arXiv:2101.06840). ``weights+optimizer``: the shares of the weights too, which are copied to the device before each all-gather
(Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857; PyTorch FSDP, ``CPUOffload``).
"""

from __future__ import annotations

from typing import Literal, get_args

Offload = Literal["none", "optimizer", "weights+optimizer"]
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
