"""Search for the best strategy under a goal."""
