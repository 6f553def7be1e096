"""The prediction as a value: figures, ranges, assumptions, bottlenecks."""
