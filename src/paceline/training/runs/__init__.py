"""Training runs: launcher, workers, loops, data."""
