"""Sharing when each site decides for itself."""
