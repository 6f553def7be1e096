"""Failures of devices in long runs: their rate, and the time that checkpoints and restarts add."""
