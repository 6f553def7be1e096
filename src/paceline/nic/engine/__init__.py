"""Engines in Amaranth, each from a 256-bit stream with valid and ready to another."""
