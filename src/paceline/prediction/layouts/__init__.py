"""Step time and memory of many layouts at once."""
