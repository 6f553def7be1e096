"""Objectives of a training step: the next token, preferences, and rewards."""
