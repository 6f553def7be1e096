"""Live scheduling: jobs that run for real under a policy."""
