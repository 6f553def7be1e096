"""Compressions: what each sends, its options and its cost."""
