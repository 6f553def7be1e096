"""Layer tables built from dimensions."""
