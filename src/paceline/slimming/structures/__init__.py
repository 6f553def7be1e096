"""Structures of a network and their removal."""
