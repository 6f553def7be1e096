"""Know how fast a distributed training job will run before the hardware is there; then make it run that fast."""

__version__ = "0.1.0"
