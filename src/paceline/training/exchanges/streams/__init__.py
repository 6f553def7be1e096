"""Encoded elements on their way through an exchange."""
