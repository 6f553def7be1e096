"""Policies: pure functions from the state of a cluster to a decision."""
