"""Measurements, and the constants that the model derives from them: records, link speeds, a Gaussian process."""
