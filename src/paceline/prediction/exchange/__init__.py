"""Collectives of a step: bytes and seconds on the links."""
