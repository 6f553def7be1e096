"""Who sends to whom. Each exchange turns the streams of a bucket into their mean over the workers."""

from paceline.training.exchanges.allreduce import allreduce
from paceline.training.exchanges.push_pull import push_pull

__all__ = ["allreduce", "push_pull"]
