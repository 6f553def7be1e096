"""Commands that tests of planning begin with."""

from __future__ import annotations

SMALL = "--device A100 --devices-per-node 4 --network 10Gb/s --max-nodes 2"
PLAN = f"plan resnet-50 {SMALL} --global-batch 512 --sharding ddp"
JOB = "resnet-50 --device V100 --devices-per-node 8 --nodes 2 --network 10Gb/s --global-batch 1024"
