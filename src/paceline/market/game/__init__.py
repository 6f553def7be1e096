"""Cooperative games: savings of groups, divisions, stability."""
