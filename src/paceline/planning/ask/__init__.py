"""One answer to one question for users who are no experts: fit, speed, cost and advice."""
