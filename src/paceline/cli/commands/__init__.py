"""One module a command: its options, what it runs and what it prints."""
