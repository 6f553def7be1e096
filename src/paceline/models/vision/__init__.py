"""Networks that see or make images."""
