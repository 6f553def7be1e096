"""Streams of encoded elements in an exchange."""
