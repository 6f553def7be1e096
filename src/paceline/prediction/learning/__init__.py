"""Samples to a target: convergence curves, the gradient noise scale, and the largest published batches."""
