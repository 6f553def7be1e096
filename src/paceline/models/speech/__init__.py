"""Networks for speech recognition and synthesis."""
