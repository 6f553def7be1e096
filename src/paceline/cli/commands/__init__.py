"""One module per command, with its options, its action and its output."""
