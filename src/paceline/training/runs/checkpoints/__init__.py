"""Checkpoints, and the state that ranks restore."""
