"""Settings of the schedulers Slurm and Kueue."""
