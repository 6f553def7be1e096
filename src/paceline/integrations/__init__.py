"""Callbacks for training frameworks; each file needs its framework and PyTorch."""
