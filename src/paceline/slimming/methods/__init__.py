"""Methods that make a network smaller."""
