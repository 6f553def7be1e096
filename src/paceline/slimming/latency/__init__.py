"""Latency, measured and predicted."""
