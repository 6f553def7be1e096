"""One answer to one question: fit, speed, cost and advice."""
