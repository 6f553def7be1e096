"""Steps of preference and reward training: parts around the training of a policy."""
