"""Sharing between sites: gains, stability and payments."""
