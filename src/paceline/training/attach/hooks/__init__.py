"""Communication hooks that run a compression behind a stock DistributedDataParallel model."""
