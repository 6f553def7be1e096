"""Jobs that run for real under a policy."""
