"""Networks for text and translation."""
