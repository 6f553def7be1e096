"""Readers of other tools' files: each turns a text into facts, and runs nothing of it."""
