"""Networks as frameworks define them: their settings from the dimensions of a workload."""
