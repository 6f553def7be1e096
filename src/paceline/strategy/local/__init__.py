"""Recipes of local steps."""
