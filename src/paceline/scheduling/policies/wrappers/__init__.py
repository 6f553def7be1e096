"""Wrappers of any policy: ageing, and early termination."""
