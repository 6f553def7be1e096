"""Comparison of strategies and clusters: effect of a change, bottlenecks, scaling, and reasons against a strategy."""
