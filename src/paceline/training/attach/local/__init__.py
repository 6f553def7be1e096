"""Local steps between exchanges."""
