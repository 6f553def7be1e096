"""Comparison of strategies and clusters: whatif, explain, scaling."""
