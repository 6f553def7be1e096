"""Engines in Amaranth, from an input stream of 256 bits with valid and ready to an output stream."""
