"""Gradients in an exchange: their place in a buffer, samples, statistics, error feedback."""
