"""Asynchronous SGD with parameter servers: throughput and staleness of N workers and M servers, from a one-worker profile."""

from paceline.prediction.asynchronous.profile import Profile, WorkerLayer
from paceline.prediction.asynchronous.result import AsyncResult
from paceline.prediction.asynchronous.simulate import simulate

__all__ = ["AsyncResult", "Profile", "WorkerLayer", "simulate"]
