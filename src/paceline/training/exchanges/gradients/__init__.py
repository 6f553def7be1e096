"""Gradients that an exchange sends: their place in a buffer, samples, statistics, error feedback."""
