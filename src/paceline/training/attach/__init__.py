"""Gradient exchange for a model of the user: hooks, checks, local steps, shards."""
