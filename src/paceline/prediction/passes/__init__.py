"""Forward pass, backward pass and update on one device: time and memory."""
