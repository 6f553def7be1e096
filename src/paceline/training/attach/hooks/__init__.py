"""Communication hooks: a compression behind a stock DistributedDataParallel model."""
