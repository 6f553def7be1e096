"""Measurements, and the constants that the model derives from them."""
