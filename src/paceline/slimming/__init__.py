"""Slimming of trained networks: structures are removed, and latency is measured."""
