"""Samples to a target: convergence, gradient noise, published batches."""
