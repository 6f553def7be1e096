"""Compressions, with their messages, options and cost."""
