"""Files of other runtimes."""
