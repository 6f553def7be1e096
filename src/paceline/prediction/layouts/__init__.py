"""Step time and memory of many layouts at once: an exact batch of undivided layouts, and bounds of divided ones."""
