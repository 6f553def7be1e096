"""The declaration of a choice, its legal values and what they do."""
