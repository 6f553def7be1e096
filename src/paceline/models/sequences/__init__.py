"""Networks of text and translation."""
