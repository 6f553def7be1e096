"""Callbacks for training frameworks, which need PyTorch, and time estimates for SkyPilot, which do not."""
