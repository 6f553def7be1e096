"""Policies of queues with reservations: backfill, and the schedulers Slurm and Kueue."""
