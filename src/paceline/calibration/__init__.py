"""Measurements and what the model learns from them: constants with sources, records, link speeds, a Gaussian process."""
