"""What was measured, and what it says of the model: constants with their sources, records, links, a Gaussian process."""
