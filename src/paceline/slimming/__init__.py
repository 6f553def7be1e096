"""Slims trained networks: structures are really removed, and latency is really measured."""
