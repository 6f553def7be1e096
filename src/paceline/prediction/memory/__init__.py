"""Memory of a step over time, from the bytes and the passes of its prediction."""
