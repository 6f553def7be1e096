"""Networks that hear or speak."""
