"""Declaration of a choice: its legal values and their effects."""
