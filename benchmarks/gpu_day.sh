#!/usr/bin/env bash
# Everything that only a GPU can show, in 12 minutes: see docs/gpu-day.md. Options: --dry-run, --gpus N, --only STEP..., --out DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" benchmarks/gpu_day.py "$@"
